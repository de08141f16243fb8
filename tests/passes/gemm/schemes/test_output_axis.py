"""Where a GEMM's output features lie on its stored tensors: parts of them, computed apart, are the whole."""

import pytest
import torch

from oproj_pass.passes import Axis, find_projections, shard_of
from oproj_pass.passes.gemm.following_rules import CannotFollow
from oproj_pass.passes.graph.provenance import placeholders
from tests.support import layouts, quantised
from tests.support.layouts import LAYOUTS, layout
from tests.support.quantised import Model, model

ATTENTION = frozenset({torch.ops.oproj_quantised.attend})
SIZE = 2
OPERATORS = [quantised.W8A8Static, quantised.W8A8Dynamic, quantised.IntMM]


def outputs_by_rank(module, x, part_of_rank):
    """Each rank's H / N bias-free features of ``x``, and the whole ones."""
    program = torch.export.export(module, (x,))
    gm, signature = program.graph_module, program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    (site,), _ = find_projections(gm, parameters=names, attention_ops=ATTENTION)
    gemm = site.gemm
    scales = [scale.node for scale in gemm.row_scales]
    with gm.graph.inserting_before(gemm.node):
        y = gemm.emit_partial(gm.graph, gemm.input, *scales)
    (output,) = gm.graph.find_nodes(op="output")
    output.args = ((y,),)
    for check in gm.graph.find_nodes(
        op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
    ):
        gm.graph.erase_node(check)  # it keeps what follows the product alive
    gm.graph.eliminate_dead_code()
    gm.recompile()
    stored = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    full = {node: stored[names[node.name]].detach() if node.name in names else x for node in placeholders(gm)}
    axis = site.along(Axis.H)
    whole = gm(*full.values())[0]
    for literal in axis.literals:
        literal.shrink(SIZE)
    gm.recompile()
    parts = []
    for rank in range(SIZE):
        mine = {cut.node: shard_of(cut, full[cut.node], part_of_rank(rank), SIZE) for cut in axis.tensors}
        parts.append(gm(*(full | mine).values())[0])
    return torch.cat(parts, -1), whole


@pytest.mark.parametrize("kind", [kind for kind in LAYOUTS if not issubclass(kind, layouts.AWQ)])
def test_parts_of_a_dequantised_weight_make_up_the_whole_product(kind):
    joined, whole = outputs_by_rank(Model(layout(kind, hidden=32)), torch.randn(3, 64), lambda rank: rank)
    torch.testing.assert_close(joined, whole)


@pytest.mark.parametrize("kind", OPERATORS)
def test_parts_of_an_operators_weight_and_scales_make_up_the_whole_product(kind):
    module, x = model(kind, bias=False), torch.randn(3, 64, dtype=torch.bfloat16)
    joined, whole = outputs_by_rank(module, x, lambda rank: rank)
    assert torch.equal(joined, whole)


def test_refuses_output_features_that_are_packed_in_an_order_of_their_own():
    with pytest.raises(CannotFollow, match="picks its output features by an index"):
        outputs_by_rank(Model(layout(layouts.AWQ)), torch.randn(3, 64), lambda rank: rank)


def test_another_ranks_part_is_not_the_whole():
    joined, whole = outputs_by_rank(
        Model(layout(LAYOUTS[0], hidden=32)), torch.randn(3, 64), lambda rank: 1 - rank
    )
    assert not torch.allclose(joined, whole)
