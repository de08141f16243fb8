"""The custom pass inside each compiler, on two gloo ranks and CPU tensors, computes what the model does."""

import copy
from importlib import import_module

import pytest
import torch
import torch.distributed as dist
from torch.nn.utils import parametrize

from tests.ascend.support.process import PRELOAD, stub_environment
from tests.support.ranks import RankPool


def exchange_on_the_cpu(input, send_counts, send_offsets, recv_counts, recv_offsets, tag, ranks, size):
    """What the compilers' own operator does on an NPU, for flat buffers."""
    group = dist.distributed_c10d._find_or_create_pg_by_ranks_and_tag(tag, ranks, size)
    received = input.new_empty(sum(recv_counts))
    dist.all_to_all_single(received, input, recv_counts, send_counts, group=group)
    return received


def error_of(compiler, weights, sabotage, layers):
    """The largest difference to the unsharded model, relative to the largest output, of two steps."""
    import_module(compiler)
    from oproj_pass.passes import npu_pass
    from tests.ascend.support.decode import decode_step, decoder

    compile_with = COMPILERS[compiler]
    library = torch.library.Library("npu_define", "IMPL")
    library.impl("all_to_all_single_npu", exchange_on_the_cpu, "CPU")
    model, reference = (decoder("gqa", "cpu", torch.float32, layers) for _ in range(2))
    if weights == "presharded":
        hold_slices_only(model)
    compiled = compile_with(model, SABOTAGES[sabotage](npu_pass(expected_sites=layers)))
    errors = []
    with torch.no_grad():
        for seed in range(2):
            torch.manual_seed(10 * dist.get_rank() + seed)
            inputs = decode_step("gqa", "cpu", torch.float32, layers)
            expected = reference(**copy.deepcopy(inputs)).logits
            difference = compiled(**inputs).logits - expected
            errors.append((difference.abs().max() / expected.abs().max()).item())
    library._destroy()
    return max(errors)


def hold_slices_only(model):
    from oproj_pass.passes import WeightShard

    for layer in model.model.layers:
        projection = layer.self_attn.o_proj
        parametrize.register_parametrization(
            projection, "weight", WeightShard(1, dist.group.WORLD), unsafe=True
        )
        assert projection.parametrizations.weight.original.shape == (64, 32)


def torchair_runs(model, custom_pass):
    import torchair

    config = torchair.CompilerConfig()
    config.debug.run_eagerly = True
    config.post_grad_custom_pre_pass = custom_pass
    backend = torchair.get_npu_backend(compiler_config=config)
    return torch.compile(model, backend=backend, fullgraph=True, dynamic=False)


def npugraph_ex_runs(model, custom_pass):
    options = {"force_eager": True, "post_grad_custom_pre_pass": custom_pass}
    return torch.compile(model, backend="npugraph_ex", fullgraph=True, dynamic=False, options=options)


COMPILERS = {"torchair": torchair_runs, "npugraph_ex": npugraph_ex_runs}


def as_it_is(custom_pass):
    return custom_pass


def with_the_other_ranks_slice(custom_pass):
    """The same function with the other rank's number: it cuts the wrong slice of a full weight."""
    from oproj_pass.passes.ascend import shard

    def sabotaged(gm, example_inputs, config):
        cut = shard.cut_in_graph
        shard.cut_in_graph = lambda *args: cut(*args[:-1], 1 - args[-1])
        try:
            custom_pass(gm, example_inputs, config)
        finally:
            shard.cut_in_graph = cut

    return sabotaged


def without_the_exchange(custom_pass):
    def sabotaged(gm, example_inputs, config):
        custom_pass(gm, example_inputs, config)
        exchange = torch.ops.npu_define.all_to_all_single_npu.default
        for node in gm.graph.find_nodes(op="call_function", target=exchange):
            node.replace_all_uses_with(node.args[0])
        gm.recompile()

    return sabotaged


SABOTAGES = {
    None: as_it_is,
    "no exchange": without_the_exchange,
    "wrong slice": with_the_other_ranks_slice,
}


@pytest.fixture(scope="module", params=COMPILERS)
def ranks(request, cann_stub):
    pool = RankPool(2, stub_environment(cann_stub), PRELOAD)
    yield request.param, pool
    pool.close()


@pytest.mark.parametrize("weights", ["cut in the graph", "presharded"])
def test_equals_the_unsharded_model(ranks, weights):
    compiler, pool = ranks
    assert max(pool.run(error_of, compiler, weights, None, 2, timeout=600, group_timeout=300)) < 1e-5


def test_the_comparison_notices_what_is_wrong(ranks):
    """The negative control; both sabotages are made before a compiler sees the graph, so each has one."""
    compiler, pool = ranks
    sabotage = {"torchair": "wrong slice", "npugraph_ex": "no exchange"}[compiler]
    errors = pool.run(error_of, compiler, "cut in the graph", sabotage, 1, timeout=600, group_timeout=300)
    assert min(errors) > 1e-3
