"""A sharded model computes what the unsharded one does, on real ranks; each sabotage must show."""

import operator
from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch

import oproj_pass
from oproj_pass.backend import entry as backend
from oproj_pass.weights.placement import Placement
from tests.support.models import decoder, rows

pytestmark = pytest.mark.distributed
c10d = torch.ops._c10d_functional


def error_of(model_options, shapes, options, dtype="float32", dynamic=None, sabotage=None):
    """The largest difference to the unsharded model over several steps, relative to the largest output."""
    dtype = getattr(torch, dtype)
    model, reference = decoder(dtype, **model_options), decoder(dtype, **model_options)
    with torch.inference_mode(), SABOTAGES[sabotage]() if sabotage else nullcontext():
        compiled = torch.compile(model, backend="oproj_npu", options=options, dynamic=dynamic, fullgraph=True)
        errors = []
        for shape in shapes:
            x = rows(*shape, dtype=dtype)
            expected = reference(x)
            difference = compiled(x) - expected
            errors.append((difference.abs().max() / expected.abs().max()).item())
    assert len(oproj_pass.shard_report(model).weights) == len(model.layers)
    return max(errors)


def without_all_to_all(gm):
    for node in gm.graph.find_nodes(op="call_function", target=c10d.all_to_all_single.default):
        node.replace_all_uses_with(node.args[0])


def without_reduction(gm):
    for node in gm.graph.find_nodes(op="call_function", target=c10d.reduce_scatter_tensor.default):
        size, rank = node.args[2], torch.distributed.get_rank() % node.args[2]
        with gm.graph.inserting_before(node):
            mine = gm.graph.call_function(torch.chunk, (node.args[0], size))
            mine = gm.graph.call_function(operator.getitem, (mine, rank))
        node.replace_all_uses_with(mine)


def with_bias_on_every_rank(gm):
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
        with gm.graph.inserting_after(node):
            again = gm.graph.call_function(torch.ops.aten.add.Tensor, (node, node.args[1]))
        node.replace_all_uses_with(again, delete_user_cb=lambda user, again=again: user is not again)


def editing(edit):
    run_passes = backend.run_passes

    def run_and_edit(gm, *args):
        records = run_passes(gm, *args)
        edit(gm)
        gm.recompile()
        return records

    return lambda: patch.object(backend, "run_passes", run_and_edit)


def wrong_slice():
    def next_ranks_slice(placement, full):
        part = full.shape[placement.dim] // placement.group.size
        return full.narrow(placement.dim, (placement.group.rank + 1) % placement.group.size * part, part)

    return patch.object(Placement, "part_of", next_ranks_slice)


SABOTAGES = {
    "no all-to-all": editing(without_all_to_all),
    "no reduction": editing(without_reduction),
    "bias twice": editing(with_bias_on_every_rank),
    "wrong slice": wrong_slice,
}

STEPS = [(2, 3, 32), (2, 5, 32), (4, 3, 32)]
SHALLOW = {"layers": 1}


@pytest.mark.parametrize("dynamic", [False, True, None], ids=["static", "dynamic", "automatic"])
@pytest.mark.parametrize("inner", ["eager", "aot_eager"])
def test_equals_the_unsharded_model_under_any_inner_backend(two_ranks, inner, dynamic):
    options = {"oproj_tensor_parallel_size": 2, "inner_backend": inner}
    assert max(two_ranks.run(error_of, {}, STEPS, options, "float32", dynamic)) < 1e-5


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_equals_the_unsharded_model_under_inductor(two_ranks, dynamic):
    options, steps = {"oproj_tensor_parallel_size": 2, "inner_backend": "inductor"}, STEPS[: 1 + dynamic]
    errors = two_ranks.run(error_of, {}, steps, options, "float32", dynamic, timeout=280)
    assert max(errors) < 1e-5


@pytest.mark.parametrize("kind", ["sdpa", "explicit"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("projection", ["linear", "addmm", "matmul"])
def test_equals_the_unsharded_model_for_every_gemm_form(two_ranks, projection, bias, kind):
    model = SHALLOW | {"projection": projection, "bias": bias, "kind": kind}
    shapes, options = [(7, 32), (1, 1, 32), (2, 2, 3, 32)], {"oproj_tensor_parallel_size": 2}
    assert max(two_ranks.run(error_of, model, shapes, options, "float32", False)) < 1e-5


@pytest.mark.parametrize("size", [2, 4, "auto"])
def test_shards_over_consecutive_ranks_of_a_larger_world(four_ranks, size):
    assert max(four_ranks.run(error_of, SHALLOW, STEPS[:1], {"oproj_tensor_parallel_size": size})) < 1e-5


@pytest.mark.parametrize("size", [2, 4])
def test_splits_features_not_heads_when_kv_heads_are_fewer_than_ranks(four_ranks, size):
    model = SHALLOW | {"heads": 4, "kv_heads": 1}
    assert max(four_ranks.run(error_of, model, STEPS[:1], {"oproj_tensor_parallel_size": size})) < 1e-5


def test_needs_no_padding_for_row_counts_that_the_group_does_not_divide(two_ranks):
    shapes, options = [(1, 32), (3, 32), (5, 32)], {"oproj_tensor_parallel_size": 2}
    assert max(two_ranks.run(error_of, SHALLOW, shapes, options, "float32", False)) < 1e-5


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_parity_fails_when_the_exchange_is_sabotaged(two_ranks, sabotage):
    """The negative control of every test above."""
    errors = two_ranks.run(
        error_of, SHALLOW, STEPS[:1], {"oproj_tensor_parallel_size": 2}, "float32", None, sabotage
    )
    assert min(errors) > 1e-3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stays_within_rounding_for_half_precision(two_ranks, dtype):
    """N partial sums are rounded to the type before they are added: a few units in the last place."""
    unit = torch.finfo(getattr(torch, dtype)).eps
    errors = two_ranks.run(error_of, SHALLOW, STEPS[:1], {"oproj_tensor_parallel_size": 2}, dtype)
    assert max(errors) < 8 * unit


def one_projection_error(reduce_dtype):
    """The error of one bf16 projection against its float64 product."""
    model = decoder(torch.bfloat16, layers=1, hidden=256, heads=8, head_dim=32)
    attention, exact = (
        model.layers[0].attn,
        decoder(torch.float64, layers=1, hidden=256, heads=8, head_dim=32),
    )
    exact = exact.to(torch.bfloat16).double().layers[0].attn
    options = {"oproj_tensor_parallel_size": 4, "reduce_dtype": reduce_dtype}
    x = rows(64, 256, dtype=torch.bfloat16)
    with torch.inference_mode():
        y = torch.compile(attention, backend="oproj_npu", options=options)(x)
        return (y.double() - exact(x.double())).abs().mean().item()


def test_reducing_in_float32_is_more_exact(four_ranks):
    plain, wide = four_ranks.run(one_projection_error, None), four_ranks.run(one_projection_error, "float32")
    assert sum(wide) < sum(plain)


def constant_rows():
    model = decoder(layers=1)
    attention = model.layers[0].attn
    attention.o_proj.weight.zero_()
    attention.o_proj.bias.fill_(100)
    with torch.inference_mode():
        return torch.compile(attention, backend="oproj_npu")(rows(3, 32))


def test_adds_the_bias_once(two_ranks):
    for y in two_ranks.run(constant_rows):
        assert torch.equal(y, torch.full((3, 32), 100.0))


def collectives_per_step():
    compiled = torch.compile(decoder(layers=3), backend="oproj_npu", fullgraph=True)
    with torch.inference_mode():
        compiled(rows(4, 32))
        with torch.profiler.profile() as profile:
            compiled(rows(4, 32))
    names = [event.name for event in profile.events()]
    return {
        op: names.count(f"_c10d_functional::{op}") for op in ("all_to_all_single", "reduce_scatter_tensor")
    }


def test_runs_one_exchange_and_one_reduction_per_site(two_ranks):
    expected = {"all_to_all_single": 3, "reduce_scatter_tensor": 3}
    assert two_ranks.run(collectives_per_step) == [expected, expected]


class StridedInput(torch.nn.Module):
    """The projection reads a transposed, or an every-second-column, view."""

    def __init__(self, view):
        super().__init__()
        self.attn = decoder(layers=1).layers[0].attn
        self.o_proj, self.attn.o_proj = self.attn.o_proj, torch.nn.Identity()
        self.view = view

    def forward(self, x):
        y = self.attn(x)
        strided = (
            y.t().contiguous().t()
            if self.view == "transposed"
            else torch.stack([y, y], -1).flatten(-2)[:, ::2]
        )
        return self.o_proj(strided)


def strided_error(view):
    model, reference, x = StridedInput(view), StridedInput(view), rows(6, 32)
    with torch.inference_mode():
        return (
            (torch.compile(model, backend="oproj_npu", fullgraph=True)(x) - reference(x)).abs().max().item()
        )


@pytest.mark.parametrize("view", ["transposed", "every second column"])
def test_exchanges_strided_rows_in_the_right_order(two_ranks, view):
    assert max(two_ranks.run(strided_error, view)) < 1e-5


def graphs_for_marked_rows():
    compiled = torch.compile(decoder(layers=1), backend="oproj_npu", fullgraph=True)
    torch._dynamo.utils.counters.clear()
    with torch.inference_mode():
        for count in (4, 8):
            x = rows(count, 32)
            torch._dynamo.mark_dynamic(x, 0)
            compiled(x)
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_serves_every_row_count_from_one_graph_when_rows_are_dynamic(two_ranks):
    assert two_ranks.run(graphs_for_marked_rows) == [1, 1]
