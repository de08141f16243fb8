"""Why only the second half is fused: what Ascend's two fused all_to_all operators compute, on real ranks.

The exchange before the partial product sends part j of my tokens' features to rank j: rows join, the summed
dimension does not. ``npu_all_to_all_matmul`` multiplies *after* an exchange that joins the summed dimension;
``npu_matmul_all_to_all`` multiplies *before* an exchange like ours.
"""

import pytest
import torch
import torch.distributed as dist

from oproj_pass.passes import STRATEGIES
from oproj_pass.passes.traffic import TokenSizes
from tests.support import npu_mc2_kernels

pytestmark = pytest.mark.distributed
TOKENS, FEATURES, HIDDEN = 4, 16, 8


@pytest.fixture(params=["two_ranks", "four_ranks"])
def ranks(request):
    return request.getfixturevalue(request.param)


class Layer:
    """One rank's tokens, its slice of a weight [H, K] that all ranks agree on, and what it has to compute."""

    def __init__(self):
        npu_mc2_kernels.register()
        self.rank, self.size, self.comm = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name
        shared = torch.Generator().manual_seed(7)
        everything = torch.randn(self.size, TOKENS, FEATURES, generator=shared, dtype=torch.float64)
        self.weight = torch.randn(HIDDEN, FEATURES, generator=shared, dtype=torch.float64)
        self.part = FEATURES // self.size
        mine = slice(self.rank * self.part, (self.rank + 1) * self.part)
        self.x, self.weight_slice = everything[self.rank], self.weight[:, mine]
        self.everyones_rows = everything.flatten(0, 1)
        self.received = self.everyones_rows[:, mine]
        self.partial = self.received @ self.weight_slice.T
        self.result = self.x @ self.weight.T


def fused_after(rows_per_message):
    """``npu_all_to_all_matmul`` on this rank's tokens, cut as only fits the shape of the partial product."""
    layer = Layer()
    x = layer.x.reshape(layer.size * rows_per_message(layer.size), -1)
    operand = layer.weight_slice.T[: layer.size * x.shape[1]]
    result, _ = torch.ops.npu.npu_all_to_all_matmul(x, operand, layer.comm, layer.size)
    return (result - layer.partial).abs().max().item()


def test_one_fused_all_to_all_matmul_is_not_the_first_half(ranks):
    """The one cut of x whose shapes fit, [N*N*T, K/(N*N)]: each result then sums several ranks' tokens."""
    for error in ranks.run(fused_after, messages_of_all_tokens):
        assert error > 0.1


def messages_of_all_tokens(size):
    return size * TOKENS


def fused_with_a_weight_for_each_rank():
    """Zeros keep the ranks' tokens apart, one block of columns for each sender."""
    layer = Layer()
    packed = layer.x.view(TOKENS, layer.size, layer.part).permute(1, 0, 2).reshape(-1, layer.part)
    operand = torch.block_diag(*[layer.weight_slice.T] * layer.size)
    result, _ = torch.ops.npu.npu_all_to_all_matmul(packed, operand, layer.comm, layer.size)
    rows = result.view(TOKENS, layer.size, HIDDEN).permute(1, 0, 2).flatten(0, 1)
    return (rows - layer.partial).abs().max().item(), operand.numel() / layer.weight.numel()


def test_zeros_make_it_right_at_n_times_the_full_weight(ranks):
    for error, growth in ranks.run(fused_with_a_weight_for_each_rank):
        assert error < 1e-9
        assert growth == ranks.world


def fused_before():
    """The exchange alone: ``npu_matmul_all_to_all`` by an identity [K, K]."""
    layer = Layer()
    identity = torch.eye(FEATURES, dtype=layer.x.dtype)
    received = torch.ops.npu.npu_matmul_all_to_all(layer.x, identity, layer.comm, layer.size)
    return (received - layer.received).abs().max().item()


def test_the_exchange_is_that_of_matmul_all_to_all_whose_product_comes_before_it(ranks):
    assert max(ranks.run(fused_before)) == 0


def column_parallel():
    """Rows of the weight split instead of columns: y^T = all_to_all(W[my H] @ X^T), X of all ranks."""
    layer = Layer()
    mine = layer.weight.chunk(layer.size)[layer.rank]
    transposed = torch.ops.npu.npu_matmul_all_to_all(mine, layer.everyones_rows.T, layer.comm, layer.size)
    return (transposed.T - layer.result).abs().max().item()


def test_a_weight_split_over_its_outputs_fuses_with_matmul_all_to_all(ranks):
    """Right, and another dataflow: it gathers all of K, so it sends more than ours wherever K > H."""
    assert max(ranks.run(column_parallel)) < 1e-9


@pytest.mark.parametrize(
    ("in_features", "out_features", "cheaper"),
    [(16384, 7168, True), (4096, 4096, None), (4096, 5120, False)],
)
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_splitting_k_sends_less_iff_k_exceeds_h(in_features, out_features, cheaper, size):
    """Elements that a rank sends for one of its tokens."""
    token = TokenSizes(in_features, out_features, input_itemsize=1, sum_itemsize=1, product_itemsize=1)
    ours, outputs = (STRATEGIES[name].sent_nbytes(token, size) for name in ("row", "column"))
    assert (None if ours == outputs else ours < outputs) is cheaper
