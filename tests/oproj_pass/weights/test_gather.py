"""Full values come in the order of use, one ahead, through two buffers; nothing reads those of another."""

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oproj_pass import WeightReleasedError
from oproj_pass.errors import ConfigError, EagerStepError
from oproj_pass.groups import ShardGroup
from oproj_pass.passes.gemm.split import Split
from oproj_pass.weights import gather_layout
from oproj_pass.weights.gather import GatheredWeights
from oproj_pass.weights.gather_order import digest, order_of_reads
from oproj_pass.weights.placement import Placement
from oproj_pass.weights.released import release


class Wire:
    """Rank 1 of two ranks; ``started``: the gathers, in order."""

    def __init__(self):
        self.group, self.peers, self.started = ShardGroup(Group(), Group(), (0, 1), 1), {}, []

    def weight(self, full, split, path):
        """A released weight, of which rank 0 holds the first part."""
        weight = nn.Parameter(full.clone(), requires_grad=False)
        theirs = split.part_of(full, 0, 2).contiguous()
        release([weight], path, Placement.split(split, self.group))
        self.peers[weight.shard.tensor.data_ptr()] = path, theirs.view(-1).view(torch.uint8)
        return weight

    def start(self, parts, mine, group):
        path, theirs = self.peers[mine.data_ptr()]
        self.started.append(path)
        parts.copy_(torch.cat([theirs, mine]))
        return []


class Group:
    """Stands for a process group."""


@pytest.fixture
def wire():
    wire = Wire()
    with patch.object(gather_layout, "start_gather", wire.start):
        yield wire


def full(*shape):
    return torch.arange(1.0, torch.Size(shape).numel() + 1).view(shape)


WEIGHTS = {
    "column": (full(8, 4), Split(0)),
    "row": (2 * full(8, 8), Split(1)),
    "fused": (3 * full(8, 8), Split(0, segments=2)),
    "vocabulary": (4 * full(7, 8), Split(0, padded_by=1)),
    "padded row": (5 * full(2, 7), Split(1, padded_by=1)),
}


@pytest.fixture
def model(wire):
    weights = {name: wire.weight(*how, name) for name, how in WEIGHTS.items()}
    return lambda x: [F.linear(x[:, : weight.shape[1]], weight) for weight in weights.values()]


X = torch.randn(3, 8)


def expected():
    return [F.linear(X[:, : values.shape[1]], values) for values, _ in WEIGHTS.values()]


def gathered(call):
    return GatheredWeights(order_of_reads(call), timeout=0.2)


def test_brings_every_kind_of_cut_whole(wire, model):
    weights = gathered(lambda: model(X))
    for _ in range(2):
        with weights.serving():
            results = model(X)
        assert all(map(torch.equal, results, expected()))
    assert wire.started == 2 * [*WEIGHTS]
    assert weights.buffer_nbytes == full(8, 8).nbytes


def test_starts_the_next_gather_before_the_model_computes(wire, model):
    weights = gathered(lambda: model(X))
    started = []
    with (
        weights.serving(),
        patch.object(F, "linear", lambda x, w: started.append(len(wire.started)) or x @ w.t()),
    ):
        model(X)
    assert started == [1, 2, 3, 4, 5]  # each asks for its own weight next, while that one already travels


def test_reads_nothing_outside_of_a_step(model):
    weights = gathered(lambda: model(X))
    with weights.serving():
        model(X)
    with pytest.raises(WeightReleasedError):
        model(X)


def test_gathers_what_is_alive_at_once_together(wire):
    weight, scale = wire.weight(full(4, 4), Split(0), "weight"), wire.weight(full(4, 1), Split(0), "scale")
    other = wire.weight(full(4, 4), Split(1), "other")

    def dequantised(x):
        y = F.linear(x, weight.view(4, 4) * scale)
        return F.linear(y, other) + F.linear(y, other)

    order = order_of_reads(lambda: dequantised(X[:, :4]))
    assert [[shard.path for shard in entry] for entry in order] == [["weight", "scale"], ["other"]]
    with GatheredWeights(order, 1).serving():
        found = dequantised(X[:, :4])
    y = F.linear(X[:, :4], full(4, 4) * full(4, 1))
    assert torch.equal(found, 2 * F.linear(y, full(4, 4)))


def test_refuses_a_model_that_keeps_a_view(wire):
    weight, kept = wire.weight(full(4, 4), Split(0), "layers.0.o_proj"), []
    with pytest.raises(ConfigError, match=r"layers\.0\.o_proj: the model keeps the full weight"):
        order_of_reads(lambda: kept.append(weight.t()))


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        (lambda x, first, second, third: F.linear(x, third), "reads third, and first comes next"),
        (lambda x, first, second, third: F.linear(x, first), "read 1 of the 3 weights"),
        (
            lambda x, first, second, third: (first.t(), F.linear(x, second)),
            "first: the model still holds the full weight",
        ),
    ],
)
def test_refuses_at_run_time_what_capture_did_not_see(wire, reads, message):
    all_three = [wire.weight(full(4, 4), Split(1), name) for name in ("first", "second", "third")]
    weights = gathered(lambda: [F.linear(X[:, :4], weight) for weight in all_three])
    with pytest.raises(EagerStepError, match=message), weights.serving():
        reads(X[:, :4], *all_three)


def test_ranks_with_other_weights_or_another_order_have_another_digest(wire):
    weights = [wire.weight(full(4, 4), split, "w") for split in (Split(0), Split(1))]
    orders = [order_of_reads(lambda o=o: [w.sum() for w in o]) for o in (weights, weights[::-1], weights[:1])]
    assert len(set(map(digest, orders))) == 3
