"""Whatever stands around a projection, and between the GEMMs of an MLP: what is taken is exact on every rank.

Steps that a rule follows and steps that it must refuse are put together at random. In double precision, so
that nothing but a wrong number is far off.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.support.strategies import next_ranks_part, rows, sharded

HIDDEN, INTERMEDIATE, TOKENS, SIZE = 16, 24, 6, 2
ROLES = ("oproj", "mlp")
CLOSE = 1e-9


def set_first_feature(h):
    h = h.clone()
    h[:, 0] = h[:, 1]
    return h


def set_first_row(h):
    h[0] = h[1]
    return h


def written_view(h):
    h[:, : h.shape[-1] // 2].mul_(3)
    return h


def read_before_it_is_written(h):
    before = h * 2
    h.add_(1)
    return h + before


def halves_joined(h):
    first, second = h.chunk(2, -1)
    return torch.cat([first, second], -1)


def halves_swapped(h):
    first, second = h.chunk(2, -1)
    return torch.cat([second, first], -1)


ALONE = {  # each number by itself, or laid out anew
    "scaled": lambda h: h * 1.5,
    "shifted": lambda h: h + 1,
    "taken off": lambda h: 2 - h,
    "scaled in place": lambda h: h.mul_(2),
    "rectified in place": lambda h: h.relu_(),
    "squashed": torch.tanh,
    "chosen": lambda h: torch.where(h > 0, h, h / 4),
    "cast": lambda h: h.float().double(),
    "copied": torch.clone,
    "one more dimension": lambda h: h.unsqueeze(1).squeeze(1),
    "with its sizes": lambda h: h * h.shape[0] / h.shape[-1],
    "dropped out": lambda h: F.dropout(h, 0.5, training=False),
    "read before it is written": read_before_it_is_written,
}
NOT_IN_AN_MLP = {  # the same, but in no rule for what lies between its GEMMs
    "in groups": lambda h: h.view(h.shape[0], 4, -1).flatten(1),
    "turned twice": lambda h: h.t().t(),
    "added to zeros": lambda h: torch.zeros_like(h).add_(h),
    "beside ones": lambda h: h * torch.ones_like(h),
    "halves joined": halves_joined,
}
TOGETHER = {  # numbers of several features, or rows, which are other ones on a rank
    "normed": lambda h: F.rms_norm(h, h.shape[-1:]),
    "centred": lambda h: h - h.mean(-1, keepdim=True),
    "centred over rows": lambda h: h - h.mean(0),
    "features summed up": lambda h: h.cumsum(-1),
    "rows summed up": lambda h: h.cumsum(0),
    "by the largest of all": lambda h: h / (1 + h.abs().max()),
    "features turned round": lambda h: h.flip(-1),
    "rows turned round": lambda h: h.flip(0),
    "features rolled": lambda h: h.roll(1, -1),
    "rows rolled": lambda h: h.roll(1, 0),
    "features counted": lambda h: h * torch.arange(h.shape[-1]),
    "rows counted": lambda h: h * torch.arange(h.shape[0])[:, None],
    "padded": lambda h: F.pad(h, (1, 0))[:, :-1],
    "halves swapped": halves_swapped,
    "groups turned": lambda h: h.view(h.shape[0], 4, -1).transpose(1, 2).flatten(1),
    "first feature set": set_first_feature,
    "first row set": set_first_row,
    "written through a view": written_view,
    "below the diagonal": torch.tril,
    "weighted": lambda h: h * h.softmax(-1),
    "weighted over rows": lambda h: h * h.softmax(0),
}
STEPS = ALONE | NOT_IN_AN_MLP | TOGETHER
names = st.lists(st.sampled_from(sorted(STEPS)), max_size=2)


class Layer(nn.Module):
    """An attention and an MLP, with steps in front of its projection and on both sides of its activation."""

    def __init__(self, around=(), before=(), behind=()):
        super().__init__()
        self.around, self.before, self.behind = around, before, behind
        self.o_proj = nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, INTERMEDIATE), nn.Linear(INTERMEDIATE, HIDDEN)

    def forward(self, x):
        y = F.rms_norm(x, (HIDDEN,))[None, None]
        x = x + self.o_proj(through(self.around, F.scaled_dot_product_attention(y, y, y)[0, 0]))
        h = through(self.before, self.up(F.rms_norm(x, (HIDDEN,))))
        return x + self.down(through(self.behind, F.gelu(h)))


def through(steps, h):
    for name in steps:
        h = STEPS[name](h)
    return h


class Sharded:
    """What became of one layer with its steps."""

    def __init__(self, *steps, **options):
        torch.manual_seed(0)
        layer = Layer(*steps).double().eval().requires_grad_(False)
        xs = rows(SIZE, TOKENS, HIDDEN, dtype=torch.float64)
        outcome = sharded(layer, xs, roles=ROLES, all_found=False, **options)
        self.error = outcome.error
        self.roles = [site.role for site in outcome.record.matches]


@given(around=names, before=names, behind=names, dynamic=st.booleans())
@settings(max_examples=60, derandomize=True)
def test_what_is_taken_is_exact(around, before, behind, dynamic):
    found = Sharded(around, before, behind, dynamic=dynamic)
    event(f"taken: {found.roles}")
    assert found.error <= CLOSE, found.roles


@pytest.mark.parametrize("name", sorted(ALONE))
def test_a_step_on_each_number_alone_stands_in_nobodys_way(name):
    found = Sharded((name,), (name,), (name,))
    assert found.roles == [*ROLES]
    assert found.error <= CLOSE


@pytest.mark.parametrize("name", sorted(TOGETHER | NOT_IN_AN_MLP))
def test_any_other_step_keeps_an_mlp_whole_on_either_side_of_its_activation(name):
    for steps in ((name,), ()), ((), (name,)):
        found = Sharded((), *steps)
        assert found.roles == ["oproj"]
        assert found.error <= CLOSE


@pytest.mark.parametrize("name", sorted(TOGETHER | NOT_IN_AN_MLP))
def test_any_other_step_is_exact_in_front_of_a_projection(name):
    """There each rank still has whole rows, and its own alone."""
    assert Sharded((name,)).error <= CLOSE


def test_another_ranks_part_shows():
    """The negative control."""
    assert Sharded(slice_of=next_ranks_part).error > 1e-3
