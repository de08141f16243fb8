"""The table of GEMM forms: every entry is matched, resolved to its stored weight, and split exactly."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from oproj_pass.passes.gemm.forms import FORMS, gemm_call
from oproj_pass.passes.gemm.gemm import dense_gemm, is_plain
from oproj_pass.passes.gemm.operand import swaps_dims

K, H = 6, 4
MATRIX_PRODUCTS = {
    "linear": (F.linear, (H, K), 1),
    "mm": (torch.mm, (K, H), 0),
    "addmm": (lambda x, w: torch.addmm(x.new_full((H,), 100.0), x, w), (K, H), 0),
    "matmul": (torch.matmul, (K, H), 0),
    "matmul of a transpose": (lambda x, w: x @ w.t(), (H, K), 1),
    "linear of a transpose": (lambda x, w: F.linear(x, w.transpose(0, 1)), (K, H), 0),
    "linear of a cast": (lambda x, w: F.linear(x.double(), w.to(torch.float64)), (H, K), 1),
    "mm of two transposes": (lambda x, w: torch.mm(x, w.t().permute(1, 0)), (K, H), 0),
    "mm of an identity permutation": (lambda x, w: torch.mm(x, w.permute(0, 1)), (K, H), 0),
    "mm of a negative transpose": (lambda x, w: torch.mm(x, w.transpose(-1, -2)), (H, K), 1),
}
BATCHED = {
    "bmm of copies": (lambda x, w: torch.bmm(x.expand(2, -1, -1), w.t().expand(2, -1, -1)), (H, K), 1),
    "bmm of a view of copies": (
        lambda x, w: torch.bmm(x.expand(2, -1, -1), w.expand(1, 2, -1, -1).reshape(2, K, H)), (K, H), 0,
    ),
}  # fmt: skip


def trace(function, *shapes):
    tensors = [torch.randn(shape) for shape in shapes]
    return make_fx(function, tracing_mode="fake")(*tensors), tensors


def gemms_of(gm):
    calls = [(node, gemm_call(node)) for node in gm.graph.nodes]
    return [gemm for node, call in calls if call and (gemm := dense_gemm(node, call))]


@pytest.fixture
def engine_linear():
    """The linear operator of an engine, as vllm-ascend defines it, for as long as the test runs."""
    library = torch.library.Library("vllm", "FRAGMENT")
    library.define("unquantized_gemm(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor")
    library.impl("unquantized_gemm", F.linear, "CompositeExplicitAutograd")
    yield torch.ops.vllm.unquantized_gemm
    library._destroy()


def test_reads_an_engines_linear_operator_as_a_linear(engine_linear):
    gm, (x, weight) = trace(lambda x, w: engine_linear(x, w), (3, K), (H, K))
    (gemm,) = gemms_of(gm)
    assert (gemm.form.name, gemm.weight.dim) == ("linear", 1)
    with gm.graph.inserting_before(gemm.node):
        partial = gemm.emit_partial(gm.graph, gemm.input)
    gemm.node.replace_all_uses_with(partial)
    gemm.erase()
    gm.recompile()
    torch.testing.assert_close(gm(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("name", MATRIX_PRODUCTS | BATCHED)
def test_resolves_the_stored_weight_and_its_summed_dimension(name):
    function, shape, contraction_dim = (MATRIX_PRODUCTS | BATCHED)[name]
    gm, _ = trace(function, (3, K), shape)
    (gemm,) = gemms_of(gm)
    assert gemm.weight.node is gm.graph.find_nodes(op="placeholder")[1]
    assert gemm.weight.dim == contraction_dim
    assert shape[gemm.weight.dim] == K


@pytest.mark.parametrize("name", MATRIX_PRODUCTS)
def test_partial_products_of_the_slices_sum_to_the_whole_without_the_bias(name):
    function, shape, contraction_dim = MATRIX_PRODUCTS[name]
    gm, (x, weight) = trace(function, (3, K), shape)
    (gemm,) = gemms_of(gm)
    with gm.graph.inserting_before(gemm.node):
        partial = gemm.emit_partial(gm.graph, gemm.input)
    gemm.node.replace_all_uses_with(partial)
    gemm.erase()
    gm.recompile()
    halves = zip(x.chunk(2, 1), weight.chunk(2, contraction_dim), strict=True)
    parts = [gm(*half).float() for half in halves]
    whole = x @ (weight if shape == (K, H) else weight.t())
    torch.testing.assert_close(sum(parts), whole)
    assert not torch.allclose(parts[0], whole)


@pytest.mark.parametrize("name", BATCHED)
def test_erases_the_copies_with_the_product(name):
    function, shape, _ = BATCHED[name]
    gm, _ = trace(function, (3, K), shape)
    (gemm,) = gemms_of(gm)
    assert gemm.k.constants
    gemm.node.replace_all_uses_with(gemm.input)
    gemm.erase()
    assert not {gemm.node, *gemm.k.constants} & set(gm.graph.nodes)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x, w: torch.bmm(x.expand(2, -1, -1), w), (2, K, H)),
        (lambda x, w: x @ (w * 2), (K, H)),
        (lambda x, w: x @ w.view(K, H), (H, K)),
        (lambda x, w: F.linear(x, w[:H]), (2 * H, K)),
    ],
    ids=["per-head matrices", "computed weight", "reinterpreted weight", "part of a weight"],
)
def test_matches_no_weight_that_cannot_be_sliced(function, shape):
    gm, _ = trace(function, (3, K), shape)
    assert gemms_of(gm) == []


@pytest.mark.parametrize(("factors", "plain"), [({}, True), ({"alpha": 2}, False), ({"beta": 0.5}, False)])
def test_a_scaled_addmm_is_not_plain(factors, plain):
    gm, _ = trace(lambda x, w, b: torch.addmm(b, x, w, **factors), (3, K), (K, H), (H,))
    (gemm,) = gemms_of(gm)
    assert is_plain(gemm) is plain


def test_no_operation_has_two_forms():
    targets = [target for form in FORMS for target in form.targets]
    assert len(targets) == len(set(targets))


@settings(deadline=None)
@given(st.lists(st.sampled_from([(0, 1), (1, 0), (-1, -2), (-2, -1), (0, -1), (0, 0), (1, 1), (-1, 1)])))
def test_follows_any_chain_of_transposes(swaps):
    def function(x, w):
        for swap in swaps:
            w = w.transpose(*swap)
        return torch.mm(x, w)

    weight = torch.empty(K, H)
    for swap in swaps:
        weight = weight.transpose(*swap)
    stored = (K, H) if weight.shape == (K, H) else (H, K)
    gm, _ = trace(function, (3, K), stored)
    (gemm,) = gemms_of(gm)
    assert stored[gemm.weight.dim] == K


def test_a_layout_node_that_is_no_transpose_says_so():
    gm, _ = trace(lambda x: x.view(-1), (K, H))
    assert [swaps_dims(node) for node in gm.graph.nodes if node.op == "call_function"] == [None]
