"""The fusing pass alone: what it fuses, what it leaves alone and why."""

from functools import partial

import pytest
import torch

from oproj_pass.passes import Exchange, ShardOProj, fingerprint, run_passes, snapshot
from oproj_pass.passes.ascend.mc2 import FuseMatmulReduceScatter
from oproj_pass.passes.ascend.mc2_limits import Device
from oproj_pass.passes.diff.traffic import count_collectives, payload
from oproj_pass.passes.graph.provenance import module_path, value_of
from tests.support import npu_mc2_kernels
from tests.support.fake import fake_world
from tests.support.models import decoder, rows

c10d, aten = torch.ops._c10d_functional, torch.ops.aten
A2, A3 = Device("Ascend910B3", "9.1.0"), Device("Ascend910_9391", "9.1.0")


@pytest.fixture(autouse=True, scope="module")
def kernels():
    npu_mc2_kernels.register()


def fuse(size=2, device=A2, comm_name=lambda group: "comm", dtype=torch.bfloat16, edit=None, dynamic=False,
         reduce_dtype=None, **options):  # fmt: skip
    """A rewritten and fused graph and the fusing pass's record."""
    model = decoder(dtype, **({"heads": 64} | options))
    shapes = ({0: torch.export.Dim("rows", min=2)},) if dynamic else None
    program = torch.export.export(model, (rows(3, 32, dtype=dtype),), dynamic_shapes=shapes)
    gm, parameters = program.graph_module, program.graph_signature.inputs_to_parameters
    with fake_world(size) as name:
        exchange = Exchange(size, name, reduce_dtype)
        sharding = ShardOProj(exchange, parameters=parameters)
        run_passes(gm, (), [sharding])
        if edit:
            edit(gm)
        (record,) = run_passes(gm, (), [FuseMatmulReduceScatter(sharding.regions, device, comm_name)])
        return gm, record, fingerprint(gm)


def calls(gm):
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def fused_nodes(gm):
    target = torch.ops.npu.npu_mm_reduce_scatter_base.default
    return gm.graph.find_nodes(op="call_function", target=target)


@pytest.mark.parametrize("projection", ["linear", "addmm", "matmul"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_writes_one_operator_instead_of_a_product_and_a_reduce_scatter(projection, size):
    gm, record, _ = fuse(size, projection=projection, head_dim=32, layers=3)
    assert [pair.path for pair in record.matches] == [f"layers.{i}.attn.o_proj" for i in range(3)]
    assert not record.near_misses
    assert len(fused_nodes(gm)) == 3
    assert calls(gm).count(c10d.all_to_all_single.default) == 3
    assert c10d.reduce_scatter_tensor.default not in calls(gm)
    assert calls(gm).count(c10d.wait_tensor.default) == 3


def test_multiplies_this_ranks_features_of_all_tokens_with_this_ranks_weight():
    gm, _, _ = fuse(2, layers=1)
    (node,) = fused_nodes(gm)
    x, operand, comm, size = node.args
    assert (tuple(value_of(x).shape), tuple(value_of(operand).shape)) == ((6, 256), (256, 32))
    assert (comm, size) == ("comm", 2)
    assert tuple(value_of(node).shape) == (3, 32)
    assert module_path(node) == "layers.0.attn.o_proj"


def test_adds_the_bias_behind_the_fused_operator():
    gm, _, _ = fuse(layers=1)
    (node,) = fused_nodes(gm)
    assert [user.target for user in node.users] == [aten.add.Tensor]


def test_fuses_with_a_symbolic_row_count():
    gm, record, _ = fuse(dynamic=True)
    assert len(record.matches) == len(fused_nodes(gm)) == 2
    assert isinstance(value_of(fused_nodes(gm)[0]).shape[0], torch.SymInt)


def test_asks_for_the_communicator_of_the_exchanges_group():
    asked = []
    with fake_world(2) as name:
        pass
    _, record, _ = fuse(comm_name=lambda group: asked.append(group) or "comm")
    assert record.matches
    assert set(asked) == {name}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": Device("", "")}, "the chip is unknown"),
        ({"device": Device("Ascend910B3", "8.0.RC1")}, "needs CANN 8.0.RC2 or newer, found 8.0.RC1"),
        ({"size": 16, "heads": 512}, "Atlas A2 fuses over 2, 4, 8 ranks, not over 16"),
        ({"heads": 32}, "found 128 input features"),
        ({"dtype": torch.float32}, "found float32 and float32"),
        ({"reduce_dtype": torch.float32}, "reduced in torch.float32 (option `reduce_dtype`)"),
        ({"comm_name": lambda group: None}, "has no HCCL communicator"),
    ],
)
def test_keeps_the_unfused_pair_and_says_why(options, reason):
    gm, record, _ = fuse(**options)
    assert record.is_clean
    assert not fused_nodes(gm)
    assert calls(gm).count(c10d.reduce_scatter_tensor.default) == len(record.near_misses) == 2
    assert all(reason in miss.reason for miss in record.near_misses)
    assert record.near_misses[0].path == "layers.0.attn.o_proj"


def test_a3_fuses_over_16_ranks():
    gm, record, _ = fuse(16, A3, heads=512)
    assert len(fused_nodes(gm)) == len(record.matches) == 2


def with_another_communicator(gm):
    (first, *_) = gm.graph.find_nodes(op="call_function", target=aten.linear.default)
    with gm.graph.inserting_after(first):
        weight = gm.graph.call_function(aten.t.default, (first.args[1],))
    with gm.graph.inserting_after(weight):
        gm.graph.call_function(
            torch.ops.npu.npu_mm_reduce_scatter_base.default, (first.args[0], weight, "tp", 2)
        )


@pytest.mark.parametrize(("device", "fused"), [(A2, 0), (A3, 2)])
def test_shares_a_model_with_another_communicator_where_the_chip_allows_it(device, fused):
    _, record, _ = fuse(device=device, edit=with_another_communicator)
    assert len(record.matches) == fused
    assert all("the graph uses tp too" in miss.reason for miss in record.near_misses)


def with_a_foreign_reduce_scatter(gm, of):
    (output,) = gm.graph.find_nodes(op="output")
    source = {
        "a product": gm.graph.find_nodes(op="call_function", target=aten.linear.default)[-1],
        "an input": gm.graph.find_nodes(op="placeholder")[-1],
    }[of]
    (ours, *_) = gm.graph.find_nodes(op="call_function", target=c10d.reduce_scatter_tensor.default)
    with gm.graph.inserting_before(output):
        reduced = gm.graph.call_function(ours.target, (source, *ours.args[1:]))
        gm.graph.call_function(c10d.wait_tensor.default, (reduced,))
    reduced.meta["val"] = value_of(ours)


@pytest.mark.parametrize("of", ["a product", "an input"])
def test_leaves_the_models_own_reduce_scatters_alone(of):
    gm, record, _ = fuse(edit=partial(with_a_foreign_reduce_scatter, of=of))
    assert len(record.matches) == 2
    assert not record.near_misses
    assert calls(gm).count(c10d.reduce_scatter_tensor.default) == 1


def test_leaves_a_graph_without_exchanges_alone():
    program = torch.export.export(decoder(), (rows(3, 32),))
    before = program.graph_module.code
    (record,) = run_passes(program.graph_module, (), [FuseMatmulReduceScatter([], A2, lambda group: "comm")])
    assert (record.is_clean, record.near_misses) == (True, ())
    assert program.graph_module.code == before


def test_counts_as_a_collective_in_the_fingerprint():
    _, _, print_ = fuse(layers=1)
    exchange, fused = print_.lines
    assert exchange.startswith("all_to_all_single bfloat16[1536] over ranks [0, 1]")
    assert fused == "npu_mm_reduce_scatter_base bfloat16[6, 256] over 2 ranks at layers.0.attn.o_proj"


def test_counts_as_a_collective_of_unknown_size_in_a_diff():
    gm, _, _ = fuse(layers=1)
    graph = snapshot(gm)
    assert count_collectives(graph) == {"all_to_all_single": 1, "npu_mm_reduce_scatter_base": 1}
    assert payload(graph.by_name[fused_nodes(gm)[0].name], graph) is None


def test_the_fingerprint_does_not_depend_on_the_communicators_name():
    prints = [fuse(comm_name=lambda group, name=name: name)[2] for name in ("rank0", "rank1")]
    assert prints[0] == prints[1]


def test_a_rank_that_fuses_and_one_that_does_not_have_different_fingerprints():
    assert fuse()[2] != fuse(comm_name=lambda group: None)[2]


def test_keeps_the_fused_operator_when_a_rank_does_not_use_the_result():
    gm, record, _ = fuse(layers=1)
    (output,) = gm.graph.find_nodes(op="output")
    output.args = ((gm.graph.find_nodes(op="placeholder")[-1],),)
    gm.graph.eliminate_dead_code()
    assert len(fused_nodes(gm)) == len(record.matches) == 1
