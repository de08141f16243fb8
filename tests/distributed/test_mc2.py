"""The fused second half computes what the unsharded model does, on real ranks; each sabotage must show."""

import logging

import pytest
import torch
import torch.distributed as dist

from oproj_pass.passes import Exchange, ShardOProj, run_passes
from oproj_pass.passes.ascend.mc2 import FuseMatmulReduceScatter
from oproj_pass.passes.ascend.mc2_limits import Device
from oproj_pass.passes.graph.provenance import placeholders
from tests.support import npu_mc2_kernels
from tests.support.fake import part_of
from tests.support.models import decoder, rows

pytestmark = pytest.mark.distributed
MODEL = {"heads": 64, "head_dim": 16}


@pytest.fixture(params=["two_ranks", "four_ranks"])
def ranks(request):
    return request.getfixturevalue(request.param)


def relative_error(shape, dtype, projection, sabotage=None):
    """This rank's largest difference to the unsharded model, and the number of fused products."""
    npu_mc2_kernels.register()
    rank, size, dtype = dist.get_rank(), dist.get_world_size(), getattr(torch, dtype)
    model, x = decoder(dtype, projection=projection, **MODEL), rows(*shape, dtype=dtype)
    program = torch.export.export(model, (x,))
    names = program.graph_signature.inputs_to_parameters
    shard = ShardOProj(Exchange(size, dist.group.WORLD.group_name), parameters=names)
    fuse = FuseMatmulReduceScatter(shard.regions, Device("Ascend910B3", "9.1.0"), lambda group: group)
    gm = program.graph_module
    sharding, fusing = run_passes(gm, (), [shard, fuse])
    if sabotage == "unreduced":
        sum_nothing(gm, rank)
    cuts = {node.name: cut for node, cut in sharding.tensors.items()}
    mine = (rank + 1) % size if sabotage == "next rank's slice" else rank

    def argument(name):
        weight = model.get_parameter(names[name])
        return part_of(cuts[name], weight, mine) if name in cuts else weight

    inputs = [argument(node.name) if node.name in names else x for node in placeholders(gm)]
    expected = model(x)
    (result,) = gm(*inputs)
    error = (result - expected).abs().max() / expected.abs().max()
    return error.item(), len(fusing.matches)


def sum_nothing(gm, rank):
    for node in gm.graph.find_nodes(
        op="call_function", target=torch.ops.npu.npu_mm_reduce_scatter_base.default
    ):
        x, operand, _, size = node.args
        with gm.graph.inserting_before(node):
            product = gm.graph.call_function(torch.mm, (x, operand))
            parts = gm.graph.call_function(torch.chunk, (product, size))
            mine = gm.graph.call_function(lambda parts: parts[rank], (parts,))
        node.replace_all_uses_with(mine)
    gm.recompile()


@pytest.mark.parametrize(
    ("projection", "shape"), [("linear", (2, 3, 32)), ("addmm", (3, 32)), ("matmul", (1, 32))]
)
def test_matches_the_unsharded_model(ranks, projection, shape):
    for error, fused in ranks.run(relative_error, shape, "float16", projection):
        assert fused == 2
        assert error < 5e-3


def test_matches_in_bfloat16(ranks):
    for error, fused in ranks.run(relative_error, (5, 32), "bfloat16", "linear"):
        assert fused == 2
        assert error < 3e-2


@pytest.mark.parametrize("sabotage", ["unreduced", "next rank's slice"])
def test_parity_fails_when_sabotaged(ranks, sabotage):
    for error, _ in ranks.run(relative_error, (3, 32), "float16", "linear", sabotage):
        assert error > 5e-2


class Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def compiled_without_npu():
    """The backend's error to the unsharded model, and what it logged of the options for Ascend."""
    messages, model = Messages(), decoder(**MODEL)
    logging.getLogger("oproj_pass.backend.ascend").addHandler(messages)
    x = rows(3, 32)
    with torch.inference_mode():
        expected = model(x)
        result = torch.compile(model, backend="oproj_npu", options={"fuse": "mc2", "overlap": True})(x)
    return (result - expected).abs().max().item(), messages.texts


def test_the_backend_leaves_out_what_only_ascend_can_and_logs_why(two_ranks):
    for error, logged in two_ranks.run(compiled_without_npu):
        assert error < 1e-4
        overlap, fusing = logged
        assert "overlap is left out" in overlap
        assert "found inner_backend = 'auto', on cpu" in overlap
        assert "2 projections are left as they were, the first is layers.0.attn.o_proj" in fusing
        assert "is not fused: torch_npu" in fusing or "has no HCCL communicator" in fusing
