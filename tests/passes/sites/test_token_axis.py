"""A softmax over layers, residual streams or heads is no attention; one over tokens is."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.traced import search

T, H, N = 5, 16, 4


def weighed(scores, values):
    return torch.softmax(scores, -1) @ values


def stacked(x, a, b):
    states = torch.stack([x, x * 2, F.silu(x)])
    weights = torch.softmax(torch.einsum("td,ntd->nt", F.linear(x, a), states), 0)
    return torch.einsum("nt,ntd->td", weights, states)


def stacked_inside(x, a, b):
    states = F.rms_norm(torch.stack([x, x * 2, F.silu(x)], dim=1), (H,))
    return weighed(F.linear(x, a)[:, None] @ states.mT, states)[:, 0]


def stacked_and_projected(x, a, b):
    states = torch.stack([x, x * 2], dim=1)
    return weighed(F.linear(x, a)[:, None] @ states.mT, F.linear(states, b)).squeeze(1)


def joined(x, a, b):
    states = torch.cat([x.unsqueeze(1), (x * 2)[:, None]], 1)
    return weighed(F.linear(x, a)[:, None] @ states.transpose(1, 2), states).squeeze(1)


def stacked_for_one_operator(x, a, b):
    states = torch.stack([x, x * 2, x * 3], -2)
    return F.scaled_dot_product_attention(F.linear(x, a)[:, None], states, value=states)[:, 0]


def expanded(x, a, b):
    streams = x[:, None].expand(-1, N, -1)
    return weighed(streams @ F.linear(streams, a).mT, streams).sum(1)


def repeated_and_summed(x, a, b):
    streams = x.unsqueeze(1).repeat(1, N, 1) + F.linear(x, a).unsqueeze(1)
    return weighed(streams @ streams.mT, streams).mean(1)


def projected_as_rows(x, a, b):
    streams = x[:, None].expand(-1, N, -1)
    values = F.linear(streams.reshape(-1, H), b).view(T, N, H)
    return weighed(streams @ F.linear(streams, a).mT, values)[:, 0]


def mixed_by_matrices(x, a, b):
    first, second = (F.linear(x, w).unflatten(-1, (N, N)) for w in (a, b))
    return weighed(first @ second, torch.matmul(torch.softmax(first, -1), second)).flatten(1)


def over_heads(x, a, b):
    q, k = (F.linear(x, w).view(T, N, H // N) for w in (a, b))
    return weighed(q @ k.mT, k).flatten(1)


def over_channels(x, a, b):
    q, k = (F.linear(x, w).unflatten(-1, (N, H // N)).permute(1, 2, 0) for w in (a, b))
    return weighed(q @ k.mT, k).permute(2, 0, 1).reshape(T, H)


STACKED, COPIED, APART = "over stacked tensors", "over copies of a tensor", "over parts of a token's features"


def found(attention):
    stored = [torch.randn(H, H) for _ in range(3)]
    return search(lambda x, a, b, out: x + F.linear(attention(x, a, b), out), (torch.randn(T, H),), *stored)


@pytest.mark.parametrize(
    ("mixer", "axis"),
    [
        (stacked, STACKED), (stacked_inside, STACKED), (stacked_and_projected, STACKED), (joined, STACKED),
        (stacked_for_one_operator, STACKED), (expanded, COPIED), (repeated_and_summed, COPIED),
        (projected_as_rows, COPIED), (mixed_by_matrices, APART), (over_heads, APART), (over_channels, APART),
    ],
)  # fmt: skip
def test_leaves_a_mixer_alone_that_weighs_no_tokens(mixer, axis):
    sites, (miss,) = found(mixer)
    assert sites == []
    assert miss.reason.startswith("follows a softmax ")
    assert axis in miss.reason
    assert miss.nbytes == 4 * H * H


def heads(x, *weights):
    return [F.linear(x, weight).unflatten(-1, (N, H // N)).transpose(0, 1) for weight in weights]


def plain(x, a, b):
    q, k = heads(x, a, b)
    return weighed(q @ k.mT, k).transpose(0, 1).flatten(1)


def grouped(x, a, b):
    q, k = heads(x, a, b)
    k = k[:2, None].expand(-1, 2, -1, -1).reshape(N, T, H // N)
    return F.scaled_dot_product_attention(q, k, k).transpose(0, 1).reshape(T, H)


def one_key_head(x, a, b):
    q, k = heads(x, a, b)
    k = k[:1].expand(N, -1, -1)
    return torch.einsum("hqk,hkd->qhd", torch.softmax(torch.einsum("hqd,hkd->hqk", q, k), -1), k).flatten(1)


def with_a_prefix(x, a, b):
    q, k = heads(x, a, b)
    k = torch.cat([k.new_zeros(N, 1, H // N), k], 1)
    return weighed(q @ k.mT, k).transpose(0, 1).flatten(1)


def with_as_many_tokens_as_streams(x, a, b):
    """The axis of tokens is told by where it comes from, not by its size."""
    streams = torch.stack([x, x * 2]).sum(0)
    return plain(streams, a, b)


def over_projected_tokens(x, a, b):
    k = F.linear(x.mT, x.new_ones(3, T)).mT
    return weighed(F.linear(x, a) @ k.mT, k)


@pytest.mark.parametrize(
    "attention",
    [plain, grouped, one_key_head, with_a_prefix, with_as_many_tokens_as_streams, over_projected_tokens],
)
def test_takes_an_attention_over_tokens_whatever_else_has_been_stacked_or_copied(attention):
    sites, misses = found(attention)
    assert ([site.weight_path for site in sites], misses) == (["out"], [])
