"""Every rule against what one rank computes: expressions in front of an attention, and attentions by hand.

A rule that is wrong gives wrong numbers in silence, so each has an expression, in every kind of graph that
the pass is given: PyTorch's own functions or ATen's operators, with sizes or with symbols for them.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.passes.context_parallel import expressions
from tests.support.fake import fake_world
from tests.support.prefill import Splitting, first_chunk_everywhere, split_export

CLOSE = 2e-6


class Layer(nn.Module):
    """One attention between an embedding and a head."""

    def __init__(self, before=lambda x: x, attend=None):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, expressions.WIDTH), nn.Linear(expressions.WIDTH, 9)
        self.before = before
        self.attend = attend or (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True))

    def forward(self, ids):
        x = self.before(self.embed(ids))
        return self.head(x + self.attend(x))


def layer(**parts):
    torch.manual_seed(0)
    return Layer(**parts).eval().requires_grad_(False)


def aten(model, ids, edit):
    split, record = split_export(model, ids, edit=edit)
    return split(ids), [record]


def dynamo(model, ids, edit, *, dynamic=False):
    torch._dynamo.reset()
    splitting = Splitting()
    result = torch.compile(model, backend=splitting, fullgraph=True, dynamic=dynamic)(ids)
    return result, splitting.records


def symbolic(model, ids, edit):
    return dynamo(model, ids, edit, dynamic=True)


def difference(model, ids, compute, edit=None):
    """The largest difference to the whole model, relative above one; or why nothing was split."""
    result, (record,) = compute(model, ids, edit)
    if record.near_misses:
        return record.near_misses[0].reason
    whole = model(ids)
    return ((result - whole).abs() / whole.abs().clamp(min=1)).max().item()


def differences(compute, shape, kind, names, edit=None):
    ids = torch.randint(0, 64, shape, generator=torch.Generator().manual_seed(shape[1]))
    table = {"before": expressions.BEFORE, "attend": expressions.ATTENTIONS}[kind]
    with torch.no_grad():
        return {name: difference(layer(**{kind: table[name]}), ids, compute, edit) for name in names or table}


@pytest.mark.parametrize(
    ("compute", "shape", "kind", "names"),
    [
        (aten, (2, 4), "before", ()),
        (dynamo, (1, 7), "before", ()),
        (symbolic, (2, 5), "before", tuple(expressions.OF_SIZES)),
        (aten, (1, 7), "attend", ()),
        (dynamo, (2, 4), "attend", ()),
        (symbolic, (1, 7), "attend", ("by_baddbmm", "cache_scattered")),
    ],
)
def test_computes_what_one_rank_does(two_ranks, compute, shape, kind, names):
    for found in two_ranks.run(differences, compute, shape, kind, names, timeout=300):
        assert {name: error for name, error in found.items() if not error <= CLOSE} == {}


def test_every_expression_would_show_rows_of_another_rank(two_ranks):
    """Else an expression that forgets its rows would pass."""
    first, second = two_ranks.run(differences, aten, (2, 4), "before", (), first_chunk_everywhere)
    assert {name for name in first if max(first[name], second[name]) < 1e-3} == set()


@pytest.fixture(scope="module")
def fake_pair():
    with fake_world(2):
        yield


@pytest.mark.parametrize("name", expressions.MIXING)
@pytest.mark.parametrize("compute", [aten, dynamo])
def test_refuses_what_mixes_rows_and_says_why(fake_pair, compute, name):
    expression, reason = expressions.MIXING[name]
    with torch.no_grad():
        assert reason in difference(layer(before=expression), torch.zeros(1, 7, dtype=torch.int64), compute)


def test_refuses_sizes_of_other_entries_than_the_batchs(fake_pair):
    """Found before anything is written."""
    twice = layer(
        before=lambda x: (
            x.repeat(2, 1, 1).view(2 * x.shape[0] * x.shape[1], -1).view(-1, *x.shape[1:])[: x.shape[0]]
        )
    )
    with torch.no_grad():
        reason = difference(twice, torch.zeros(3, 7, dtype=torch.int64), symbolic)
    assert "which are not those of the batch" in reason


names = st.sampled_from(sorted(expressions.ANYWHERE))
attentions = st.sampled_from(sorted(expressions.ATTENTIONS))


def difference_of(compute, shape, stages, attentions):
    """Of two layers, with expressions in front of each attention and behind the last."""
    torch.manual_seed(0)
    model = Layers(stages, attentions).eval().requires_grad_(False)
    ids = torch.randint(0, 64, shape, generator=torch.Generator().manual_seed(shape[1]))
    with torch.no_grad():
        return difference(model, ids, compute) if model(ids).isfinite().all() else "has no finite result"


class Layers(nn.Module):
    def __init__(self, stages, attentions):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, expressions.WIDTH), nn.Linear(expressions.WIDTH, 9)
        self.norm = nn.RMSNorm(expressions.WIDTH)
        self.stages = [[expressions.ANYWHERE[name] for name in stage] for stage in stages]
        self.attentions = [expressions.ATTENTIONS[name] for name in attentions]

    def forward(self, ids):
        x = self.embed(ids)
        for stage, attend in zip(self.stages, [*self.attentions, lambda x: x], strict=True):
            for expression in stage:
                x = expression(x)
            x = x + attend(self.norm(x))
        return self.head(x)


FOUND_ONCE = [
    (aten, (2, 4), ([], ["joined_to_what_is_written", "rolled"], []), ("by_hand", "by_hand")),
    (dynamo, (2, 4), ([], ["by_stride"], []), ("by_einsum", "by_hand")),
    (dynamo, (1, 8), (["through_a_view", "stacked_behind"], [], []), ("by_baddbmm", "by_einsum")),
    (dynamo, (1, 8), (["by_its_own_mean"], [], []), ("by_baddbmm", "by_einsum")),
]


@pytest.mark.parametrize("drawn", FOUND_ONCE)
def test_splits_right_or_not_at_all_what_went_wrong_once(two_ranks, drawn):
    for found in two_ranks.run(difference_of, *drawn):
        assert isinstance(found, str) or found < 1e-4


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    compute=st.sampled_from([aten, dynamo]),
    shape=st.sampled_from([(1, 7), (2, 4), (1, 8), (1, 2)]),
    stages=st.tuples(*[st.lists(names, max_size=2)] * 3),
    attentions=st.tuples(attentions, attentions),
)
def test_splits_whatever_is_put_together_right_or_not_at_all(two_ranks, compute, shape, stages, attentions):
    for found in two_ranks.run(difference_of, compute, shape, stages, attentions):
        assert isinstance(found, str) or found < 1e-4
