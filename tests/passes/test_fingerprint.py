"""The text that ranks compare: same graphs, same text; other collectives, another text."""

import pytest
import torch
import torch.distributed as dist
from torch.fx.experimental.proxy_tensor import make_fx

from oproj_pass.groups import shard_group
from oproj_pass.passes import Exchange, Fingerprint, ShardOProj, fingerprint, run_passes
from oproj_pass.passes.graph_fingerprint import first_difference
from tests.support.fake import fake_world
from tests.support.models import decoder, rows


def print_of(size=2, dtype=torch.float32, dynamic=False, count=3, world=None, rank=0, **options):
    shapes = ({0: torch.export.Dim("rows", min=2)},) if dynamic else None
    program = torch.export.export(
        decoder(dtype, **options), (rows(count, 32, dtype=dtype),), dynamic_shapes=shapes
    )
    parameters = program.graph_signature.inputs_to_parameters
    with fake_world(world or size, rank):
        name = shard_group(size, None, 5).device.group_name
        run_passes(program.graph_module, (), [ShardOProj(Exchange(size, name), parameters=parameters)])
        return fingerprint(program.graph_module, range(world or 0))


def test_lists_the_collectives_in_order_with_type_shape_group_and_layer():
    exchange, reduction = print_of(layers=1).lines
    assert exchange == "all_to_all_single float32[96] over ranks [0, 1] at layers.0.attn.o_proj"
    assert reduction == "reduce_scatter_tensor float32[6, 32] over ranks [0, 1] at layers.0.attn.o_proj"


def test_is_the_same_on_every_rank_that_compares_it_over_several_groups():
    assert print_of(world=4, rank=0) == print_of(world=4, rank=3)
    assert "over each 2 of ranks [0, 1, 2, 3] at" in print_of(world=4, rank=3).lines[0]


def across(rank, beside):
    """A graph of one gather over ``beside`` ranks, as those see it that are two apart."""
    with fake_world(4, rank):
        name = dist.new_group(beside).group_name
        gather = torch.ops._c10d_functional.all_gather_into_tensor
        gm = make_fx(lambda x: gather(x, 2, name), tracing_mode="fake")(torch.zeros(3, 4))
        return fingerprint(gm, [rank % 2, rank % 2 + 2]).lines


def test_is_the_same_on_ranks_that_each_have_a_group_beside_those_that_compare():
    assert across(0, [0, 1]) == across(2, [2, 3])
    assert "over each of ranks [0, 2] with +0, +1" in across(0, [0, 1])[0]


def test_differs_where_the_groups_beside_lie_otherwise():
    assert across(0, [0, 1]) != across(2, [1, 2])


def test_is_the_same_for_the_same_model():
    assert print_of() == print_of()


@pytest.mark.parametrize(
    "other", [{"layers": 3}, {"dtype": torch.bfloat16}, {"size": 4}, {"count": 4}, {"heads": 8}]
)
def test_differs_for_another_number_type_group_or_shape(other):
    assert print_of() != print_of(**other)


def test_does_not_depend_on_a_symbolic_row_count():
    assert print_of(dynamic=True, count=4) == print_of(dynamic=True, count=9)


def test_tells_what_is_static_of_a_symbolic_size():
    exchange, reduction = print_of(dynamic=True, layers=1).lines
    assert exchange.startswith("all_to_all_single float32[32*?] over")
    assert reduction.startswith("reduce_scatter_tensor float32[2*?, 32] over")


def test_differs_for_other_features_of_symbolic_rows():
    assert print_of(dynamic=True) != print_of(dynamic=True, heads=8)


def test_names_the_first_difference_and_every_rank():
    by_rank = {0: Fingerprint(("a", "b")), 1: Fingerprint(("a", "c")), 2: Fingerprint(("a",))}
    assert first_difference(by_rank) == "collective 2: rank 0: b; rank 1: c; rank 2: none"


def test_finds_no_difference_between_equal_ranks():
    assert first_difference({0: Fingerprint(("a",)), 1: Fingerprint(("a",))}) is None
