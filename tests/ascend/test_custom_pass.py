"""The custom pass inside npugraph_ex: what it is given, what it leaves, and its compile cache."""

import logging
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.support.models import decoder

LAYERS, CALLS = 2, 3


def fake_world():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("cpu:fake,npu:fake", store=FakeStore(), rank=1, world_size=4)


def small_model():
    """Grouped-query attention, whose ``scaled_dot_product_attention`` becomes a kernel of Ascend's own."""
    return decoder(torch.bfloat16, layers=LAYERS, heads=4, kv_heads=2, bias=False).npu()


def compile_with(**options):
    return torch.compile(small_model(), backend="npugraph_ex", fullgraph=True, dynamic=False, options=options)


def operators_of(gm):
    return [node.target for node in gm.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


def facts_of_npugraph_ex():
    from oproj_pass.passes import npu_pass

    fake_world()
    seen = {}

    def before(gm, example_inputs, config):
        seen["before"] = [str(target) for target in operators_of(gm)]
        npu_pass(expected_sites=LAYERS)(gm, example_inputs, config)
        seen["mutable"] = [str(target) for target in operators_of(gm) if target._schema.is_mutable]
        cuts = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor)
        seen["weights"] = [(cut.args[0].op, tuple(cut.args[0].meta["val"].shape)) for cut in cuts]

    def after(gm, example_inputs, config):
        seen["after"] = [str(target) for target in operators_of(gm)]

    compiled = compile_with(post_grad_custom_pre_pass=before, post_grad_custom_post_pass=after)
    with torch.no_grad():
        for _ in range(CALLS):
            seen["shape"] = tuple(compiled(torch.randn(2, 3, 32, dtype=torch.bfloat16).npu()).shape)
    seen["error"] = error_of_a_wrong_count()
    return seen


def error_of_a_wrong_count():
    from oproj_pass.passes import npu_pass

    torch._dynamo.reset()
    compiled = compile_with(post_grad_custom_pre_pass=npu_pass(expected_sites=LAYERS + 1))
    try:
        with torch.no_grad():
            compiled(torch.randn(2, 3, 32, dtype=torch.bfloat16).npu())
    except torch._dynamo.exc.BackendCompilerFailed as error:
        return type(error.inner_exception).__name__, str(error)
    return None


@pytest.fixture(scope="module")
def facts(npu_process):
    return npu_process(facts_of_npugraph_ex, timeout=600)


def test_meets_ascends_spelling_of_attention_and_of_a_linear_layer(facts):
    assert facts.value["before"].count("npu.npu_fusion_attention_v3.default") == LAYERS
    assert "aten.matmul.default" in facts.value["before"]


def test_leaves_an_exchange_and_a_reduction_a_site_in_ascends_spelling(facts):
    after = facts.value["after"]
    assert after.count("npu_define.all_to_all_single_npu.default") == LAYERS
    assert after.count("_c10d_functional.reduce_scatter_tensor.default") == LAYERS
    assert "_c10d_functional.all_to_all_single.default" not in after


def test_adds_no_mutation(facts):
    """npugraph_ex has listed the written inputs before the pass runs, and would lose another."""
    assert facts.value["mutable"] == []


def test_placeholders_keep_their_meaning(facts):
    assert facts.value["weights"] == [("placeholder", (32, 32))] * LAYERS


def test_the_rewritten_step_is_captured_once_and_replayed(facts):
    assert facts.value["shape"] == (2, 3, 32)
    assert facts.count("replay") == CALLS


def test_its_errors_reach_the_caller_with_their_layers(facts):
    kind, message = facts.value["error"]
    assert kind == "SiteMismatchError"
    assert "found 2. Found: layers.0.attn.o_proj; layers.1.attn.o_proj." in message


class CachedModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = small_model()

    def step(self, x):
        return self.model(x)


def runs_of_the_pass(cache_dir, reduce_dtype):
    """How often the pass ran in this process, over a cache that other processes share."""
    from oproj_pass.passes import npu_pass

    fake_world()
    told = logging.getLogger("oproj_pass.passes.runner")
    told.setLevel(logging.INFO)
    records = []
    told.addFilter(lambda record: records.append(record) or True)
    options = {"post_grad_custom_pre_pass": npu_pass(reduce_dtype=reduce_dtype)}
    step = torch.npu.npugraph_ex.inference.cache_compile(
        CachedModel().eval().step, dynamic=False, cache_dir=cache_dir, options=options
    )
    shape = step(torch.randn(2, 3, 32, dtype=torch.bfloat16).npu()).shape
    assert tuple(shape) == (2, 3, 32)
    return len(records)


def test_the_compile_cache_serves_one_configuration_in_every_process_and_no_other(npu_process, tmp_path):
    def runs(reduce_dtype):
        return npu_process(runs_of_the_pass, str(tmp_path), reduce_dtype, timeout=600).value

    assert [runs(None), runs(None), runs(torch.float32)] == [1, 0, 1]
    assert len(list(Path(tmp_path).rglob("compiled_module"))) == 2
