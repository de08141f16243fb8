"""A replaced product leaves behind what it wrote in place: destinations, residuals, views of buffers."""

import pytest
import torch
import torch.nn.functional as F

from oproj_pass.passes.graph.effects import mutated_inputs, storage_owner
from tests.support.traced import attend, on_all_ranks, search, traced

H, K, T = 6, 8, 5
aten = torch.ops.aten


def mm_out(x, buffer, weight):
    torch.mm(attend(x), weight.t(), out=buffer[:T])
    return buffer * 2


def addmm_out(x, buffer, weight):
    torch.addmm(buffer[0], attend(x), weight.t(), out=buffer[:T])
    return buffer * 2


def addmm_residual(x, buffer, weight):
    buffer[:T].addmm_(attend(x), weight.t())
    return buffer * 2


def matmul_out(x, buffer, weight):
    y = torch.matmul(attend(x)[None], weight.t(), out=buffer[None, :T])
    return torch.cat([buffer, y[0]])


def overload_out(x, buffer, weight):
    aten.mm.out(attend(x), aten.t.default(weight), out=aten.slice.Tensor(buffer, 0, 0, T))
    return buffer * 2


def linear_out(x, buffer, weight):
    aten.linear.out(attend(x), weight, out=buffer[:T])
    return buffer * 2


WRITING = [mm_out, addmm_out, addmm_residual, matmul_out, overload_out, linear_out]


def compare(function, edit=None):
    """The largest difference over ranks, of results and of the buffers that were written."""
    weight = torch.randn(H, K)
    inputs = [(torch.randn(T, K), torch.randn(T + 2, H)) for _ in range(2)]
    expected = [function(x, buffer.clone(), weight) for x, buffer in inputs]
    results, sites, misses = on_all_ranks(function, inputs, weight, edit=edit)
    assert (len(sites), misses) == (1, ())
    return max((y - whole).abs().max().item() for y, whole in zip(results, expected, strict=True))


@pytest.mark.parametrize("function", WRITING, ids=lambda function: function.__name__)
def test_writes_the_product_where_the_replaced_node_did(function):
    assert compare(function) < 1e-4


def without_writes(gm):
    for node in gm.graph.find_nodes(op="call_function", target=aten.copy_.default):
        node.replace_all_uses_with(node.args[1])
        gm.graph.erase_node(node)


@pytest.mark.parametrize("function", WRITING, ids=lambda function: function.__name__)
def test_parity_fails_when_the_write_is_erased(function):
    assert not compare(function, without_writes) < 1e-2


def test_a_product_into_the_residual_is_no_hidden_layer_of_what_reads_the_residual():
    def step(x, residual, weight, up):
        residual.addmm_(attend(x), weight.t())
        return F.linear(residual, up)

    sites, misses = search(step, (torch.randn(T, K), torch.randn(T, H)), torch.randn(H, K), torch.randn(9, H))
    assert ([site.weight_path for site in sites], misses) == (["weight"], [])


def test_a_layer_that_is_written_into_a_buffer_is_hidden_all_the_same():
    """An adapter's first matrix, by ``out=``: its result feeds the second."""

    def step(x, low, weight, first, second):
        y = attend(x)
        torch.mm(y, first, out=low)
        return F.linear(y, weight) + torch.mm(low, second)

    stored = torch.randn(H, K), torch.randn(K, 2), torch.randn(2, H)
    sites, misses = search(step, (torch.randn(T, K), torch.empty(T, 2)), *stored)
    assert ([site.weight_path for site in sites], misses) == (["weight"], [])


def wider(x, buffer, weight):
    return torch.mm(attend(x).bfloat16(), weight.t().bfloat16(), out_dtype=torch.float32)


def on_the_weight(x, buffer, weight):
    return F.linear(attend(x), weight.mul_(0.5))


def on_a_view_of_the_weight(x, buffer, weight):
    return attend(x) @ weight.t().float().mul_(0.5)


def transposed_in_place(x, buffer, weight):
    return attend(x) @ weight.t_()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (wider, "is called with an argument that its form does not know (out_dtype)"),
        (on_the_weight, "has a weight that `mul_` writes in place"),
        (on_a_view_of_the_weight, "has a weight that `mul_` writes in place"),
        (transposed_in_place, "has a weight that `t_` writes in place"),
    ],
)
def test_leaves_a_product_alone_whose_effects_cannot_be_kept(function, reason):
    sites, (miss,) = search(function, (torch.randn(T, K), torch.randn(T + 2, H)), torch.randn(H, K))
    assert sites == []
    assert reason in miss.reason


def test_leaves_an_operator_alone_that_writes_its_product():
    def step(x, buffer, weight):
        return aten._int_mm.out(attend(x).to(torch.int8), aten.t.default(weight), out=buffer)

    weight = torch.zeros(H, K, dtype=torch.int8)
    sites, (miss,) = search(step, (torch.randn(T, K), torch.zeros(T, H, dtype=torch.int32)), weight)
    assert sites == []
    assert "writes `buffer` in place, by an operator that is replaced as a whole" in miss.reason


def test_a_constant_that_is_computed_in_place_in_memory_of_its_own_is_followed():
    def step(x, weight, scale):
        return F.linear(attend(x), weight.float().mul_(scale))

    stored = torch.randint(-9, 9, (H, K), dtype=torch.int8), torch.rand(H, 1)
    xs = [(torch.randn(T, K),) for _ in range(2)]
    results, sites, _ = on_all_ranks(step, xs, *stored)
    assert len(sites) == 1
    for y, (x,) in zip(results, xs, strict=True):
        torch.testing.assert_close(y, step(x, *stored), rtol=1e-4, atol=1e-4)


@torch.library.custom_op("oproj_test::fill", mutates_args=("out",))
def fill(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x)


WRITERS = {
    "method": lambda x, y: x.mul_(y),
    "function": lambda x, y: torch.relu_(x),
    "inplace, by name": lambda x, y: F.silu(x, inplace=True),
    "inplace, by position": lambda x, y: F.relu(x, True),
    "operator": lambda x, y: aten.add_.Tensor(x, y),
    "packet": lambda x, y: aten.mul_(x, y),
    "out of a packet": lambda x, y: aten.mul(y, y, out=x),
    "out": lambda x, y: torch.mul(y, y, out=x),
    "several outs": lambda x, y: torch.sort(y, out=(x, x.long())),
    "list": lambda x, y: torch._foreach_add_([x], 1),
    "custom operator": lambda x, y: torch.ops.oproj_test.fill(y, x),
    "a view": lambda x, y: x.t().contiguous().detach().mul_(2),
}


@pytest.mark.parametrize("name", WRITERS)
def test_knows_every_way_to_write_in_place(name):
    gm = traced(WRITERS[name], torch.rand(3, 3), torch.rand(3, 3))
    written = {storage_owner(buffer).name for node in gm.graph.nodes for buffer in mutated_inputs(node)}
    assert "x" in written
    assert "y" not in written


@pytest.mark.parametrize(
    "reads",
    [
        lambda x, y: x.mul(y),
        lambda x, y: F.relu(x),
        lambda x, y: F.silu(x, inplace=False),
        lambda x, y: x.clone().mul_(y),
        lambda x, y: x.double().mul_(y),
        lambda x, y: aten.add.Tensor(x, y),
    ],
)
def test_takes_no_reader_for_a_writer(reads):
    gm = traced(reads, torch.rand(3, 3), torch.rand(3, 3))
    written = {storage_owner(buffer).name for node in gm.graph.nodes for buffer in mutated_inputs(node)}
    assert written.isdisjoint({"x", "y"})
