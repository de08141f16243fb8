"""A graph is written as the plan names it for the size whose rows it has; weights lie alike in all graphs."""

import logging
from functools import partial
from unittest.mock import patch

import pytest
import torch

from oproj_pass.backend import exchanges
from oproj_pass.backend.policy import Decision
from oproj_pass.backend.strategy import as_configured, named_strategy
from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from oproj_pass.passes import Exchange, Globs, find_projections, find_roles
from oproj_pass.passes.graph.collectives import is_collective
from tests.support.fake import fake_world
from tests.support.grouped import GroupedAttention, heads_of
from tests.support.models import decoder, rows

SIZES = (2, 4, 16)
PLAN = plan_capture(StepBound(16, 64), sizes=SIZES)
NAMED = {2: {"reduce": "scatter"}, 4: {"reduce": "exchange"}, 16: {"reduce": "exchange", "chunks": 2}}
SENDS, SCATTERS = "all_to_all_single", "reduce_scatter_tensor"
GRAPHS = {2: [SENDS, SCATTERS], 4: [SENDS] * 2, 16: [SENDS] * 4}


def every_size(named):
    return dict.fromkeys(SIZES, named)


def written(counts, strategies, *, dynamic=False, **options):
    """By row count, the collectives of the graph of one layer that a fake rank compiles."""
    found = {}

    def inner(gm, inputs):
        count = next(x.shape[0] for x in inputs if type(x) is torch.Tensor)
        found[count] = [
            node.target._schema.name.partition("::")[2] for node in gm.graph.nodes if is_collective(node)
        ]
        return gm

    plan = PLAN.with_strategies(strategies)
    options = {"oproj_tensor_parallel_size": 2, "inner_backend": inner, "plan": plan, **options}
    step = torch.compile(decoder(layers=1), backend="oproj_npu", options=options, dynamic=dynamic)
    small_chunks = patch.object(exchanges, "Exchange", partial(Exchange, least_chunk_nbytes=0))
    with fake_world(2), torch.inference_mode(), small_chunks:
        for count in counts:
            step(rows(count, 32))
    return found


def test_each_size_is_written_as_it_is_named():
    assert written(SIZES, NAMED) == GRAPHS


def test_what_a_size_leaves_out_and_other_rows_are_the_options():
    named = {2: {"chunks": 1}, 4: {"reduce": "exchange"}}
    assert written((2, 4, 8), named, reduce="scatter", chunks=2) == {
        2: [SENDS, SCATTERS],
        4: [SENDS] * 4,
        8: [SENDS, SENDS, SCATTERS, SCATTERS],
    }


def test_says_which_size_a_graph_is_of(caplog):
    with caplog.at_level(logging.INFO, "oproj_pass.backend.by_size"):
        written((4, 8), NAMED)
    assert caplog.messages == [
        "size 4 of the plan: reduce = exchange, chunks = 1",
        "a graph of 8 rows is of no size of the plan, and exchanges as the options say",
    ]


def test_refuses_a_graph_of_every_size_where_sizes_differ():
    with pytest.raises(ConfigError, match=r"layers.0.attn.o_proj: its number of rows is symbolic") as raised:
        written((16,), NAMED, dynamic=True)
    assert "size 2: reduce = scatter, chunks = 1; size 4: reduce = exchange, chunks = 1" in str(raised.value)
    assert "dynamic=False" in str(raised.value)


def test_a_graph_of_every_size_is_written_as_all_of_them_are_named():
    (collectives,) = written((16, 4), every_size({"reduce": "exchange"}), dynamic=True).values()
    assert collectives == [SENDS] * 2


def sites_of(model, x):
    program = torch.export.export(model, (x,))
    parameters = program.graph_signature.inputs_to_parameters
    return find_projections(program.graph_module, parameters=parameters)[0]


@pytest.fixture(scope="module")
def site():
    return sites_of(decoder(layers=1), rows(4, 32))[0]


@pytest.mark.parametrize(
    "options", [{}, {"strategy": "row"}, {"strategy": {"oproj": "grid"}, "grid": (2, 4)}]
)
def test_what_every_size_names_is_where_weights_lie_in_all_graphs(site, options):
    named = every_size({"strategy": "grid", "grid": (4, 2)})
    config = OProjConfig(plan=PLAN.with_strategies(named), **options, oproj_tensor_parallel_size=8)
    assert named_strategy(site, config) == "grid"
    with fake_world(8):
        assert Decision.of([site], (), config).grids == {(4, 2)}


def test_a_size_may_name_what_the_others_take_from_the_options(site):
    plan = PLAN.with_strategies({16: {"strategy": "row", "reduce": "exchange"}})
    assert named_strategy(site, OProjConfig(plan=plan)) == "row"


@pytest.mark.parametrize(
    ("named", "options", "message"),
    [
        ({16: "column"}, {}, r"o_proj: the plan places it by strategy 'column' at size 16, and by 'row' at"),
        ({16: "column"}, {"strategy": "grid"}, r"at size 16, and by 'grid' at sizes 2, 4"),
        ({2: "row", 4: "row"}, {"strategy": "auto"}, r"'row' at sizes 2, 4, and by 'auto' at size 16"),
        ({4: {"grid": (4, 2)}}, {"strategy": "grid"}, r"by grid \(4, 2\) at size 4, and by any that fits at"),
        ({4: {"grid": (4, 2)}}, {"strategy": "grid", "grid": (2, 4)}, r"and by \(2, 4\) at sizes 2, 16"),
        (every_size("row"), {"strategy": {"layers.*": "column"}}, r"'column' in a glob"),
    ],
)
def test_refuses_two_placements_of_one_weight_with_the_site_and_the_sizes(site, named, options, message):
    config = OProjConfig(plan=PLAN.with_strategies(named), **options)
    with pytest.raises(ConfigError, match=message) as raised:
        named_strategy(site, config)
    assert "one weight has one placement" in str(raised.value)


def test_refuses_them_before_anything_compiles():
    with pytest.raises(ConfigError, match="one weight has one placement"):
        written((2,), {16: "column"})


def test_refuses_a_strategy_that_does_not_exist():
    with pytest.raises(ConfigError, match=r"for size 4 a strategy of row, column.*got 'rows'"):
        OProjConfig(plan=PLAN.with_strategies({4: "rows"}))


def test_a_projection_in_two_steps_is_shared_as_a_whole_or_not_at_every_size():
    """The site decides: its default is another strategy than that of a single GEMM."""
    program = torch.export.export(GroupedAttention(), (heads_of(2, 3),))
    parameters = program.graph_signature.inputs_to_parameters
    (site,), _ = find_roles(program.graph_module, {"oproj": Globs()}, parameters=parameters)
    config = OProjConfig(plan=PLAN.with_strategies({16: "row"}))
    with pytest.raises(ConfigError, match="by strategy 'row' at size 16, and by 'group' at sizes 2, 4"):
        named_strategy(as_configured(site, config), config)
    config = OProjConfig(plan=PLAN.with_strategies(every_size("row")))
    assert named_strategy(as_configured(site, config), config) == "row"
