"""``oproj_npu`` before the two Ascend compilers, on npu tensors: the rewritten graph reaches them intact.

Values are not looked at here: the fake device computes none.
"""

import re
from types import SimpleNamespace

import pytest

from oproj_pass import ConfigError

COMPILERS = ["npugraph_ex", "npu"]
SIZES = (8, 4, 8)
# What each compiler makes of one sharded projection on npu tensors, from packing the rows to adding the bias.
EXCHANGE = (
    "npu_define.all_to_all_single_npu _c10d_functional.wait_tensor aten.view aten.t aten.matmul "
    "_c10d_functional.reduce_scatter_tensor _c10d_functional.wait_tensor aten.add"
)


def fake_world(size=4):
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("cpu:fake,npu:fake", store=FakeStore(), rank=0, world_size=size)


def refusals(inner, options):
    """What `inner_options` are refused with, and whether the weights are whole after it."""
    import torch

    from tests.ascend.support.models import decoder

    model = decoder().npu()
    told = []
    for wrong in options:
        torch._dynamo.reset()
        try:
            compile_sharded(model, inner_backend=inner, inner_options=wrong)(torch.zeros(2, 32).npu())
            told.append("")
        except ConfigError as error:
            told.append(str(error))
    return told, all(parameter.untyped_storage().nbytes() for parameter in model.parameters())


def compile_sharded(model, **options):
    import torch

    sharded = {"oproj_tensor_parallel_size": 4, **options}
    return torch.compile(model, backend="oproj_npu", options=sharded, fullgraph=True, dynamic=False)


def compile_and_step(inner, inner_options, wrong_options):
    import torch

    import oproj_pass
    from tests.ascend.support.models import decoder

    fake_world()
    told, whole = refusals("npu" if inner == "npu" else "npugraph_ex", wrong_options)
    torch._dynamo.reset()
    graphs, exchanged = [], []

    def spy(gm, example_inputs, config):
        nodes = list(gm.graph.find_nodes(op="placeholder")) + [
            n for n in gm.graph.nodes if n.op == "call_function"
        ]
        graphs.append(
            " ".join(str(node.target).rpartition(".")[0] for node in nodes if node.op != "placeholder")
        )
        exchanged.extend(node.args[0].meta["val"].dim() for node in nodes if "all_to_all" in str(node.target))

    model = decoder().npu()
    step = compile_sharded(
        model, inner_backend=inner, inner_options={**inner_options, "post_grad_custom_pre_pass": spy}
    )
    with torch.inference_mode():
        shapes = [tuple(step(torch.zeros(size, 32).npu()).shape) for size in SIZES]
    weights = [layer.o_proj.weight for layer in model.layers]
    return SimpleNamespace(
        told=told,
        whole=whole,
        graphs=graphs,
        exchanged=exchanged,
        shapes=shapes,
        full_bytes=[weight.untyped_storage().nbytes() for weight in weights],
        sharded=len(oproj_pass.shard_report(model).weights),
        captured=sum(
            number
            for name, number in torch._dynamo.utils.counters["npugraph_ex"].items()
            if name.startswith("captured")
        ),
    )


WRONG_OPTIONS = {
    "npugraph_ex": {
        "npugraph_ex has no option 'force_eagr': did you mean 'force_eager'": {"force_eagr": True},
        "npugraph_ex has no option 'debug.run_eagerly'": {"debug.run_eagerly": True},
        "npugraph_ex does not accept capture_limit = 0": {"capture_limit": 0},
        "npugraph_ex does not accept post_grad_custom_pre_pass = 'mine'": {
            "post_grad_custom_pre_pass": "mine"
        },
    },
    "npu": {
        "npu has no option 'debug.run_eager': did you mean 'debug.run_eagerly'": {"debug.run_eager": True},
        "npu has no option 'force_eager'": {"force_eager": True},
        "npu has no option 'debug.graph_dump.typ'": {"debug": {"graph_dump": {"typ": "py"}}},
        "npu does not accept debug.graph_dump.type = 'svg'": {"debug": {"graph_dump": {"type": "svg"}}},
    },
}
RIGHT_OPTIONS = {"npugraph_ex": {"clone_input": True}, "npu": {"debug": {"run_eagerly": True}}}


@pytest.fixture(scope="module")
def outcomes(npu_process):
    """By compiler; npugraph_ex is the one that "auto" has to find."""
    return {
        name: npu_process(
            compile_and_step,
            "auto" if name == "npugraph_ex" else name,
            RIGHT_OPTIONS[name],
            list(WRONG_OPTIONS[name].values()),
        )
        for name in COMPILERS
    }


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_rewritten_graph_reaches_the_compiler_intact(outcomes, compiler):
    facts = outcomes[compiler].value
    assert facts.shapes == [(size, 32) for size in SIZES]
    assert len(facts.graphs) == len(set(SIZES))
    for graph in facts.graphs:
        assert graph.count(EXCHANGE) == 2


@pytest.mark.parametrize("compiler", COMPILERS)
def test_full_weights_are_released_and_the_exchange_is_flat(outcomes, compiler):
    facts = outcomes[compiler].value
    assert (facts.sharded, facts.full_bytes) == (2, [0, 0])
    assert set(facts.exchanged) == {1}


def test_auto_is_npugraph_ex_on_npu_tensors_and_replays_what_it_captured(outcomes):
    outcome = outcomes["npugraph_ex"]
    assert outcome.value.captured == len(set(SIZES))
    assert outcome.count("replay") == len(SIZES)


def test_torchair_captures_nothing(outcomes):
    assert outcomes["npu"].count("capture") == 0


@pytest.mark.parametrize("compiler", COMPILERS)
def test_refuses_wrong_inner_options_by_name_before_a_weight_is_touched(outcomes, compiler):
    facts = outcomes[compiler].value
    assert facts.whole
    for told, expected in zip(facts.told, WRONG_OPTIONS[compiler], strict=True):
        assert re.match(f"option inner_options: {re.escape(expected)}", told), told
