"""What models do to rows before an attention reads them: one expression for each form of each rule.

Each takes hidden states [B, T, 8], with rows T, and returns as many.
"""

import torch
import torch.nn.functional as F

WIDTH = 8
_VALUES = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(7))
_WEIGHT = _VALUES[:WIDTH]


def _turned(x):
    """Rotary positions, as complex numbers: [B, T, 4, 2] and one angle a row and pair."""
    angles = torch.arange(x.shape[1])[:, None] * torch.ones(WIDTH // 2)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(2)


ELEMENTWISE = {
    "activation": F.gelu,
    "comparison": lambda x: torch.where(x > 0, x, -2 * x),
    "logic": lambda x: x * ((x > 0) & ~(x > 1)),
    "position_added": lambda x: x + _VALUES[: x.shape[1]],
    "position_factor": lambda x: x * torch.arange(x.shape[1])[None, :, None],
    "whole_condition": lambda x: torch.where((torch.arange(x.shape[1]) > 2)[:, None], x, -x),
    "complex_rotation": _turned,
    "bits": lambda x: x.view(torch.int32).view(torch.float32),
    "cast": lambda x: x.double().float(),
    "zeros_like": lambda x: torch.zeros_like(x) + x,
    "new_zeros": lambda x: x.new_zeros(x.shape[0], x.shape[1], WIDTH) + x,
    "new_full": lambda x: x.new_full((x.shape[0], x.shape[1], WIDTH), 2.0) + x,
    "new_tables": lambda x: x + x.new_ones(WIDTH),
}
ALONG = {
    "softmax": lambda x: x.softmax(-1),
    "mean": lambda x: x - x.mean(-1, True),
    "sum_of_leading": lambda x: x.reshape(*x.shape[:2], 4, 2).permute(3, 0, 1, 2).sum(0).repeat(1, 1, 2),
    "sum_of_two": lambda x: x.reshape(*x.shape[:2], 4, 2).sum((-1, -2))[..., None] + x,
    "variance": lambda x: x / x.var(-1, keepdim=True),
    "norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "largest": lambda x: x.max(-1).values[..., None] + x,
    "largest_of_two": lambda x: torch.max(x, _VALUES[: x.shape[1]]),
    "largest_place": lambda x: x + x.argmax(-1, True),
    "amax": lambda x: x - x.amax(-1, keepdim=True),
    "logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True),
    "sorted": lambda x: x.sort(-1).values,
    "top": lambda x: x.topk(4, -1)[0].repeat(1, 1, 2),
    "layer_norm": lambda x: F.layer_norm(x, (WIDTH,)),
    "rms_norm": lambda x: F.rms_norm(x, (WIDTH,)),
    "gathered": lambda x: x.gather(-1, x.argsort(-1)),
}
LAYOUT = {
    "merged": lambda x: (x.view(-1, WIDTH) * 2).view(*x.shape),
    "flattened": lambda x: x.flatten(0, 1).exp().unflatten(0, (x.shape[0], x.shape[1])),
    "dimensions": lambda x: (x[None].unsqueeze(2) * 2).squeeze(0).squeeze(1),
    "movedim": lambda x: x.movedim(1, 0).exp().movedim(0, 1),
    "permuted": lambda x: x.permute(2, 1, 0).exp().permute(2, 1, 0),
    "transposed": lambda x: x.mT.exp().mT,
    "rows_first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda x: x[:, :, None].expand(-1, -1, 2, -1).exp().sum(2),
    "expanded_by_size": lambda x: x[None].expand(3, x.shape[0], x.shape[1], WIDTH).sum(0),
    "repeated": lambda x: x.repeat(1, 1, 2)[..., :WIDTH],
    "repeated_in_front": lambda x: x.repeat(2, 1, 1, 1).sum(0),
    "interleaved": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "padded": lambda x: F.pad(x, (1, 1))[..., 2:],
    "narrowed": lambda x: x.narrow(-1, 0, 4).repeat(1, 1, 2),
    "selected": lambda x: x.select(-1, 1)[..., None] + x,
    "selected_in_front": lambda x: torch.stack([x, -x]).select(0, 1),
    "selected_by_index": lambda x: x.index_select(-1, torch.arange(WIDTH - 1, -1, -1)),
    "all_rows": lambda x: x[:, : x.shape[1]] * 2,
    "split": lambda x: torch.cat(x.split(4, -1)[::-1], -1),
    "chunks": lambda x: torch.cat(x.chunk(2, -1)[::-1], -1),
    "unbound": lambda x: torch.stack(x.unbind(-1)[::-1], -1),
    "unbound_batch": lambda x: torch.stack(x.unbind(0)[::-1]),
    "stacked_behind": lambda x: torch.stack((x, x + 1), 2).sum(2),
    "joined_to_whole": lambda x: torch.cat(
        (x[..., :4], _VALUES[: x.shape[1], :4].expand(x.shape[0], -1, -1)), -1
    ),
    "indexed": lambda x: x[:, :, None, 1:][:, :, 0].sum(-1)[..., None] + x,
    "indexed_behind_dots": lambda x: x[..., 2][..., None] + x[..., None, :].squeeze(-2),
}
PRODUCTS = {
    "linear": lambda x: F.linear(x, _WEIGHT, _VALUES[9]),
    "matmul": lambda x: x @ _WEIGHT,
    "mm": lambda x: torch.mm(x.reshape(-1, WIDTH), _WEIGHT).view(*x.shape),
    "addmm": lambda x: torch.addmm(_VALUES[9], x.reshape(-1, WIDTH), _WEIGHT).view(*x.shape),
    "addmm_of_rows": lambda x: torch.addmm(x[0], x[0], _WEIGHT)[None] + x,
    "bmm": lambda x: torch.bmm(x, _WEIGHT.expand(x.shape[0], -1, -1)),
    "whole_first": lambda x: (_WEIGHT @ x.mT).mT,
    "rows_in_batch": lambda x: (x[..., None, :] @ _WEIGHT).squeeze(-2),
    "rows_in_batch_of_both": lambda x: (x[..., :, None] @ x[..., None, :]).sum(-1),
    "weight_by_position": lambda x: (x[..., None, :] @ (_VALUES[: x.shape[1], :, None] * _WEIGHT)).squeeze(
        -2
    ),
    "weight_by_position_first": lambda x: ((_VALUES[: x.shape[1], :, None] * _WEIGHT) @ x[..., None]).squeeze(
        -1
    ),
    "einsum": lambda x: torch.einsum("btd,de->bte", x, _WEIGHT),
    "einsum_by_position": lambda x: torch.einsum("btd,td->btd", x, _VALUES[: x.shape[1]]),
    "einsum_heads": lambda x: torch.einsum(
        "bthd,hde->bthe", x.view(*x.shape[:2], 2, 4), _WEIGHT.view(2, 4, 8)
    ).sum(2),
}
OF_SIZES = {
    "number_of_rows": lambda x: x * (x.shape[1] / (x.shape[1] + 1)),
    "number_of_elements": lambda x: x / x.numel(),
    "ones_of_size": lambda x: x / torch.ones(x.size()).sum(),
    "ones_of_leading_sizes": lambda x: x + torch.ones(x.shape[:2]).cumsum(-1)[..., None],
    "zeros_to_fill": lambda x: torch.zeros(x.size()).copy_(x) + x,
    "new_ones_of_size": lambda x: x.new_ones(x.size()) + x,
    "viewed_by_size": lambda x: (x.view(*x.shape[:2], 2, 4) * 2).view(x.size()),
    "expanded_by_size": lambda x: x * torch.arange(x.shape[1])[:, None].expand(x.size()),
    "expanded_as": lambda x: x * torch.arange(x.shape[1])[:, None].expand_as(x),
    "places_by_size": lambda x: x.gather(
        -1, (torch.arange(x.shape[1])[:, None] % torch.arange(1, WIDTH + 1)).expand(x.size())
    ),
    "heads_by_size": lambda x: x.view(*x.shape[:2], 2, 4).transpose(1, 2).transpose(1, 2).reshape(x.shape),
    "rows_of_ones": lambda x: x + torch.ones(x.shape[1], x.shape[1]).sum() / x.shape[1] ** 2,
    "weight_by_batch": lambda x: torch.baddbmm(_VALUES[: x.shape[1]], x, _WEIGHT.expand(x.shape[0], -1, -1)),
}
BEFORE = ELEMENTWISE | ALONG | LAYOUT | PRODUCTS | OF_SIZES


def _may_see(x):
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()


def _by_hand(x):
    scores = (x @ x.mT).masked_fill(~_may_see(x), float("-inf"))
    return scores.softmax(-1) @ x


def _by_einsum(x):
    scores = torch.einsum("bqd,bkd->bqk", x, x * 2).masked_fill(~_may_see(x), float("-inf"))
    return torch.einsum("bqk,bkd->bqd", scores.softmax(-1), x)


def _by_einsum_of_values_first(x):
    scores = torch.einsum("bkd,bqd->bkq", x * 2, x).masked_fill(~_may_see(x).mT, float("-inf"))
    return torch.einsum("bkd,bkq->bqd", x, scores.softmax(1))


def _by_baddbmm(x):
    hidden = torch.zeros(x.shape[1], x.shape[1]).masked_fill(~_may_see(x), float("-inf"))
    return torch.bmm(torch.baddbmm(hidden.expand(x.shape[0], -1, -1), x, x.mT, alpha=0.5).softmax(-1), x)


def _over(cache):
    """Attention over a cache of 12 places that holds the keys first."""

    def attend(x):
        keys = cache(torch.zeros(x.shape[0], 12, WIDTH), x)
        mask = torch.arange(x.shape[1])[:, None] >= torch.arange(12)
        return F.scaled_dot_product_attention(x, keys, keys, mask)

    return attend


def _assigned(cache, x):
    cache[:, : x.shape[1]] = x
    return cache


def _put(cache, x):
    return cache.index_put((torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])), x)


def _scattered(cache, x):
    return cache.scatter(1, torch.arange(x.shape[1])[:, None].expand(x.shape), x)


def _over_float8_keys(x):
    keys = x.to(torch.float8_e4m3fn).to(x.dtype)
    return F.scaled_dot_product_attention(x, keys, keys, is_causal=True)


ATTENTIONS = {
    "over_float8_keys": _over_float8_keys,
    "by_hand": _by_hand,
    "by_einsum": _by_einsum,
    "by_baddbmm": _by_baddbmm,
    "cache_copied_into": _over(lambda cache, x: cache.index_copy(1, torch.arange(x.shape[1]), x)),
    "cache_put": _over(_put),
    "cache_assigned": _over(_assigned),
    "cache_scattered": _over(_scattered),
    "cache_slice_scattered": _over(lambda cache, x: cache.slice_scatter(x, 1, 0, x.shape[1])),
    "cache_joined": _over(lambda cache, x: torch.cat((x, cache[:, x.shape[1] :]), 1)),
}


def _rows_written(x):
    y = x.clone()
    y[:, 0] = 0
    return y


def _taken_as_bits_of_rows(x):
    return x.mT.contiguous().view(torch.int16).view(torch.float32).mT


# What mixes rows or is not followed, with what the refusal says.
MIXING = {
    "running_sum": (lambda x: x.cumsum(1), "may mix rows"),
    "rolled": (lambda x: torch.roll(x, 1, 1), "may mix rows"),
    "flipped": (lambda x: x.flip(0, 1), "may mix rows"),
    "convolution": (lambda x: F.conv1d(x.mT, torch.ones(8, 8, 3), padding=1).mT, "may mix rows"),
    "diagonal": (lambda x: x + (x @ x.mT).diagonal(dim1=-2, dim2=-1)[..., None], "may mix rows"),
    "softmax": (lambda x: x.softmax(1), "runs along the rows"),
    "mean_of_all": (lambda x: x - x.mean(), "runs along the rows"),
    "variance_of_all": (lambda x: x / x.var(False), "runs along the rows"),
    "largest": (lambda x: x - x.max(dim=1, keepdim=True).values, "runs along the rows"),
    "sorted": (lambda x: x.sort(1).values, "runs along the rows"),
    "mean_of_merged": (lambda x: x.reshape(-1, WIDTH).mean(0) + x, "runs along the rows"),
    "scores_of_queries": (lambda x: x + (x @ x.mT).sum(-2)[..., None], "runs along the rows"),
    "norm": (lambda x: F.layer_norm(x.mT, (x.shape[1],)).mT, "normalises along the rows"),
    "repeated": (lambda x: x.repeat(1, 2, 1)[:, : x.shape[1]], "repeats the rows"),
    "interleaved": (
        lambda x: x.repeat_interleave(2).view(*x.shape[:2], 2 * WIDTH)[..., :WIDTH],
        "repeats along the rows",
    ),
    "padded": (lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1], "pads the rows"),
    "split": (lambda x: torch.cat(x.split(2, 1)[::-1], 1), "takes the rows apart"),
    "unbound": (lambda x: torch.stack(x.unbind(1)[::-1], 1), "takes the rows apart"),
    "gathered": (
        lambda x: x.gather(1, torch.zeros(*x.shape[:2], WIDTH, dtype=torch.long)),
        "picks rows by a tensor",
    ),
    "picked": (lambda x: x + x[x > 0].sum(), "reads rows by another argument than its first"),
    "scattered": (
        lambda x: x.scatter(1, torch.zeros(x.shape[0], 1, WIDTH, dtype=torch.long), 5.0),
        "writes into rows by number",
    ),
    "written": (_rows_written, "writ"),
    "contracted": (lambda x: _VALUES[: x.shape[1], : x.shape[1]] @ x, "sums over the rows"),
    "einsum": (
        lambda x: torch.einsum("btd,ts->bsd", x, _VALUES[: x.shape[1], : x.shape[1]]),
        "sums over the rows",
    ),
    "einsum_with_dots": (lambda x: torch.einsum("...d,de->...e", x, _WEIGHT), "names not every dimension"),
    "other_shape": (lambda x: x.reshape(x.shape[0], WIDTH, -1).reshape(x.shape), "across the rows"),
    "bits_of_rows": (_taken_as_bits_of_rows, "views the rows as another type"),
    "last_row": (lambda x: x + x[:, -1:], "no one value behind the last attention leads to all"),
}


def _in_place(x):
    y = x.clone()
    y.mul_(2).add_(1)
    return y


def _through_a_view(x):
    y = x * 2
    y.transpose(1, 2).add_(1)
    return y


def _by_its_own_mean(x):
    y = x.clone()
    y.mul_(y.mean(-1, True))
    return y


def _joined_to_what_is_written(x):
    first, second = x.chunk(2, -1)
    first = first.clone()
    first.mul_(second)
    return torch.cat((first, second), -1)


def _into_features(x):
    y = x.new_zeros(x.shape)
    y[..., 1:] = x[..., :-1]
    return y


def _last_row_in_place(x):
    y = x.clone()
    y[:, -1].add_(1)
    return y


def _into_what_is_longer(x):
    y = torch.zeros(x.shape[0], 20, WIDTH)
    y[:, : x.shape[1]] = x
    return y[:, : x.shape[1]] + x


def _by_stride(x):
    return x.as_strided(x.shape, x.stride())


# Writes in place, and what depends on how a value lies in memory: split right, or refused.
MEMORY = {
    "in_place": _in_place,
    "through_a_view": _through_a_view,
    "by_its_own_mean": _by_its_own_mean,
    "joined_to_what_is_written": _joined_to_what_is_written,
    "into_features": _into_features,
    "last_row_in_place": _last_row_in_place,
    "into_what_is_longer": _into_what_is_longer,
    "by_stride": _by_stride,
    "activation_in_place": lambda x: F.relu(x * 1, inplace=True) + x,
}
ANYWHERE = BEFORE | MEMORY | {name: expression for name, (expression, _) in MIXING.items()}
