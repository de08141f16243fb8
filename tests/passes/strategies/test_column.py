"""Column sharding: every scheme keeps every rank's result, integer products bit by bit; sabotage shows."""

import operator

import pytest
import torch
from torch import nn

from oproj_pass.errors import ConfigError
from oproj_pass.passes.graph.provenance import value_of
from tests.support import layouts, quantised
from tests.support.layouts import LAYOUTS, layout
from tests.support.models import decoder
from tests.support.quantised import Model, model
from tests.support.strategies import ONE_ROUNDING, next_ranks_part, rows, sharded

c10d, aten = torch.ops._c10d_functional, torch.ops.aten
INTEGER = [
    quantised.W8A8Dynamic, quantised.W8A8Smooth, quantised.W8A8Tensor, quantised.W8A8Static,
    quantised.W8A8Packed, quantised.IntMM,
]  # fmt: skip
FLOAT8 = [quantised.ScaledTensor, quantised.ScaledStatic, quantised.ScaledRow, quantised.ScaledRowNamed]
WEIGHT_ONLY = [kind for kind in LAYOUTS if not issubclass(kind, layouts.AWQ)]


def linear(features=64, hidden=32, dtype=torch.bfloat16):
    return Model(nn.Linear(features, hidden, dtype=dtype)).eval().requires_grad_(False)


@pytest.mark.parametrize("kind", INTEGER)
def test_is_bit_equal_to_the_unsharded_product_of_integers(kind):
    assert sharded(model(kind, hidden=64), rows(2, 3, 64), "column").is_equal


@pytest.mark.parametrize("kind", FLOAT8)
def test_keeps_every_ranks_product_of_float8_rows_up_to_one_rounding(kind):
    """The float32 sum beneath depends on the GEMM's shape in its last bits, which bfloat16 seldom shows."""
    assert sharded(model(kind, hidden=64), rows(2, 3, 64), "column").error <= ONE_ROUNDING


@pytest.mark.parametrize("size", [2, 4])
def test_keeps_every_ranks_product_in_bfloat16_up_to_one_rounding(size):
    assert sharded(linear(), rows(size, 3, 64), "column").error <= ONE_ROUNDING


def test_is_bit_by_bit_what_the_gemm_makes_of_all_rows_and_a_part_of_the_weight():
    """Also in float32, where a CPU's kernel for one row adds up in another order than that for several."""
    module, xs = linear(dtype=torch.float32), rows(2, 1, 64, dtype=torch.float32)
    outcome = sharded(module, xs, "column")
    weights, biases = (tensor.chunk(2) for tensor in (module.o_proj.weight, module.o_proj.bias))
    parts = [nn.functional.linear(torch.cat(xs), *part) for part in zip(weights, biases, strict=True)]
    assert torch.equal(torch.cat(outcome.outputs), torch.cat(parts, -1))
    assert outcome.error < 1e-6


@pytest.mark.parametrize("kind", WEIGHT_ONLY)
def test_keeps_every_ranks_result_for_a_dequantised_weight(kind):
    module = Model(layout(kind, hidden=64))
    assert sharded(module, rows(2, 3, 64, dtype=torch.float32), "column").error < 1e-6


@pytest.mark.parametrize("projection", ["linear", "addmm", "matmul"])
@pytest.mark.parametrize("shape", [(3, 32), (2, 3, 32)])
def test_keeps_every_ranks_result_for_every_form_and_shape(projection, shape):
    xs = rows(2, *shape, dtype=torch.float32)
    assert sharded(decoder(projection=projection), xs, "column").error < 1e-5


class Strided(nn.Module):
    """The projection reads every second column."""

    def __init__(self):
        super().__init__()
        self.o_proj = nn.Linear(32, 32)

    def forward(self, x):
        return self.o_proj(quantised.attend(x)[:, ::2])


def test_gathers_strided_rows_in_the_right_order():
    module = Strided().eval().requires_grad_(False)
    assert sharded(module, rows(2, 3, 64, dtype=torch.float32), "column").error < 1e-6


@pytest.mark.parametrize("kind", [quantised.W8A8Dynamic, quantised.ScaledRow])
def test_exchanges_a_fixed_capacity(kind):
    outcome = sharded(model(kind, hidden=64), rows(2, 3, 64), "column", capacity=5)
    assert outcome.error < 2 * torch.finfo(torch.bfloat16).eps
    gathers = [node for region in outcome.record.regions for node in region.exchange]
    assert 5 in [value_of(node.args[0]).shape[0] for node in gathers if "all_gather" in node.name]


def own_rows_for_all(gm):
    for node in gm.graph.find_nodes(op="call_function", target=c10d.all_gather_into_tensor.default):
        (wait,) = node.users
        with gm.graph.inserting_before(node):
            mine = gm.graph.call_function(aten.cat.default, ([node.args[0]] * node.args[1],))
        wait.replace_all_uses_with(mine)


def own_features_for_all(gm):
    for node in gm.graph.find_nodes(op="call_function", target=c10d.all_to_all_single.default):
        node.replace_all_uses_with(node.args[0])


@pytest.mark.parametrize("kind", [quantised.W8A8Dynamic, quantised.ScaledRow, nn.Linear])
@pytest.mark.parametrize(
    "sabotage", [{"edit": own_rows_for_all}, {"edit": own_features_for_all}, {"slice_of": next_ranks_part}]
)
def test_a_sabotaged_exchange_shows(kind, sabotage):
    """The negative control of every test above."""
    module = linear() if kind is nn.Linear else model(kind, hidden=64)
    assert sharded(module, rows(2, 3, 64), "column", **sabotage).error > 1e-2


def test_gathers_then_multiplies_then_returns_and_adds_nothing_behind():
    outcome = sharded(linear(), rows(2, 3, 64), "column")
    (region,) = outcome.record.regions
    assert [node.target for node in region.exchange if "c10d" in str(node.target)] == [
        c10d.all_gather_into_tensor.default, c10d.wait_tensor.default,
    ]  # fmt: skip
    assert [node.target for node in region.partial] == [aten.linear.default]
    assert c10d.all_to_all_single.default in [node.target for node in region.reduce]
    assert region.finish == ()
    assert [(tensor.path, tensor.dim) for tensor in region.tensors] == [
        ("o_proj.weight", 0), ("o_proj.bias", 0),
    ]  # fmt: skip


def test_gathers_float8_as_bytes():
    outcome = sharded(model(quantised.ScaledRow, hidden=64), rows(2, 3, 64), "column")
    sent = [
        value_of(node.args[0]).dtype
        for region in outcome.record.regions
        for node in region.exchange
        if node.target is c10d.all_gather_into_tensor.default
    ]
    assert sent == [torch.uint8, torch.float32]


def test_keeps_row_counts_symbolic():
    outcome = sharded(linear(), rows(2, 8, 64), "column", dynamic=True)
    assert outcome.error <= ONE_ROUNDING
    (region,) = outcome.record.regions
    (back,) = (node for node in region.reduce if node.target is c10d.all_to_all_single.default)
    assert all(split.target is operator.floordiv for split in back.args[1])


class SharedBias(nn.Module):
    """Something else reads the projection's bias."""

    def __init__(self, o_proj):
        super().__init__()
        self.o_proj = o_proj

    def forward(self, x):
        return self.o_proj(quantised.attend(x)) + self.o_proj.bias * 2


def test_adds_a_bias_that_something_else_reads_behind_the_exchange():
    module = SharedBias(nn.Linear(64, 32)).eval().requires_grad_(False)
    outcome = sharded(module, rows(2, 3, 64, dtype=torch.float32), "column")
    assert outcome.error < 1e-6
    assert [tensor.path for tensor in outcome.record.regions[0].tensors] == ["o_proj.weight"]


def test_refuses_an_integer_bias_that_something_else_reads():
    """It counts in units of scales of which a rank holds a part."""
    with pytest.raises(ConfigError, match=r"strategy 'column' does not fit.* int32 bias"):
        sharded(SharedBias(model(quantised.W8A8Static).o_proj), rows(2, 3, 64), "column")


class SharedScale(nn.Module):
    def __init__(self, o_proj):
        super().__init__()
        self.o_proj = o_proj

    def forward(self, x):
        return self.o_proj(quantised.attend(x)) * self.o_proj.scale


def test_refuses_to_cut_a_scale_that_something_else_reads():
    module = SharedScale(model(quantised.W8A8Static).o_proj)
    with pytest.raises(ConfigError, match=r"cuts o_proj.scale along H, its output features, and `mul"):
        sharded(module, rows(2, 3, 64), "column")


def test_refuses_output_features_that_are_packed_in_an_order_of_their_own():
    with pytest.raises(ConfigError, match="picks its output features by an index"):
        sharded(Model(layout(layouts.AWQ, hidden=64)), rows(2, 3, 64, dtype=torch.float32), "column")


def test_refuses_an_h_that_the_group_does_not_divide_and_names_the_unit():
    module = Model(layout(layouts.SquareBlocks, hidden=24))
    with pytest.raises(
        ConfigError, match=r"H = 24 output features cannot be split.*: 8 consecutive features"
    ):
        sharded(module, rows(2, 3, 64, dtype=torch.float32), "column")
