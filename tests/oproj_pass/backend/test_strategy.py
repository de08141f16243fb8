"""Which strategy a site gets: by its module, by its role, by bytes; and what does not fit is refused."""

import logging
from dataclasses import replace

import pytest
import torch

from oproj_pass.backend.policy import Decision
from oproj_pass.backend.strategy import as_configured, fitting_strategies, mesh_of, named_strategy
from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from oproj_pass.passes import Axis, Globs, find_projections, find_roles
from tests.support.fake import fake_world
from tests.support.grouped import GroupedAttention, heads_of
from tests.support.models import decoder


@pytest.fixture(scope="module")
def sites():
    """Two layers of K = 64, H = 32."""
    model = decoder(hidden=32, heads=8, head_dim=8)
    program = torch.export.export(model, (torch.randn(3, 32),))
    return find_projections(program.graph_module, parameters=program.graph_signature.inputs_to_parameters)[0]


def names(sites, strategy):
    return [named_strategy(site, OProjConfig(strategy=strategy)) for site in sites]


def test_takes_one_name_a_glob_or_a_role(sites):
    assert names(sites, None) == ["row", "row"]
    assert names(sites, "column") == ["column", "column"]
    assert names(sites, {"oproj": "grid"}) == ["grid", "grid"]
    assert names(sites, {"oproj": "grid", "layers.0.*": "column"}) == ["column", "grid"]


def test_refuses_a_name_that_is_none_and_one_that_the_role_has_not(sites):
    with pytest.raises(ConfigError, match=r"option strategy.*row, column, grid"):
        OProjConfig(strategy="columns")
    head = replace(sites[0], role="lmhead")
    with pytest.raises(
        ConfigError, match=r"strategy = 'row' does not fit this LM head. Those that do: column"
    ):
        named_strategy(head, OProjConfig(strategy={"lmhead": "row"}))


@pytest.mark.parametrize("size", [4, 8])
def test_lays_a_grid_out_with_the_fewest_bytes_unless_a_shape_is_given(sites, size):
    best = fitting_strategies(sites[0], size, OProjConfig(strategy="grid"))[0]
    assert mesh_of(best) == {Axis.K: size // 2, Axis.H: 2}
    given = fitting_strategies(sites[0], 8, OProjConfig(strategy="grid", grid=(2, 4)))[0]
    assert mesh_of(given) == {Axis.K: 2, Axis.H: 4}


@pytest.mark.parametrize(
    ("options", "size", "reason"),
    [
        ({"grid": (2, 2)}, 8, r"grid = \(2, 2\) has 4 ranks"),
        ({}, 2, "two sides above 1"),
        ({"grid": (2, 64)}, 128, "H = 32 output features cannot be split over 64 parts of a grid"),
    ],
)
def test_refuses_a_grid_that_does_not_fit(sites, options, size, reason):
    with pytest.raises(ConfigError, match=reason):
        fitting_strategies(sites[0], size, OProjConfig(strategy="grid", **options))


def test_refuses_a_grid_with_a_side_of_one():
    with pytest.raises(ConfigError, match="option grid"):
        OProjConfig(grid=(8, 1))


def test_auto_takes_what_sends_the_fewest_bytes_and_says_so(sites, caplog):
    config = OProjConfig(strategy="auto", oproj_tensor_parallel_size=8)
    with fake_world(8), caplog.at_level(logging.INFO, "oproj_pass.backend.strategy"):
        decision = Decision.of(sites, (), config)
    assert decision.grids == {(4, 2)}
    (line,) = caplog.messages
    assert line.startswith("strategy = auto: grid (4, 2) sends")
    assert "row sends" in line
    assert "2 layers, the first is layers.0.attn.o_proj" in line


def test_auto_leaves_out_what_the_axes_do_not_allow():
    model = decoder(layers=1, hidden=30, heads=8, head_dim=8)
    program = torch.export.export(model, (torch.randn(3, 30),))
    parameters = program.graph_signature.inputs_to_parameters
    (site,), _ = find_projections(program.graph_module, parameters=parameters)
    assert fitting_strategies(site, 4, OProjConfig(strategy="auto"))[0].name in ("row", "grid")
    assert fitting_strategies(site, 8, OProjConfig(strategy="auto"))[0].name in ("row", "grid")
    with pytest.raises(ConfigError, match="H = 30 output features cannot be split"):
        fitting_strategies(site, 4, OProjConfig(strategy="column"))


@pytest.fixture(scope="module")
def in_two_steps():
    program = torch.export.export(GroupedAttention(), (heads_of(2, 3),))
    parameters = program.graph_signature.inputs_to_parameters
    (site,), _ = find_roles(program.graph_module, {"oproj": Globs()}, parameters=parameters)
    return site


@pytest.mark.parametrize("strategy", [None, "auto", "group", {"oproj": "auto"}, {"wo_b": "group"}])
def test_cuts_both_weights_of_two_steps_unless_another_strategy_is_named(in_two_steps, strategy):
    config = OProjConfig(strategy=strategy)
    assert as_configured(in_two_steps, config) is in_two_steps
    assert named_strategy(in_two_steps, config) == "group"


@pytest.mark.parametrize("strategy", ["row", "grid", {"wo_*": "column"}])
def test_a_strategy_of_one_gemm_leaves_the_first_of_two_steps_whole(in_two_steps, strategy):
    site = as_configured(in_two_steps, OProjConfig(strategy=strategy))
    assert [on.path for on in site.stored] == ["wo_b.weight"]


def test_refuses_to_cut_groups_where_there_are_none(sites):
    with pytest.raises(ConfigError, match=r"'group' does not fit.*Those that do: row, column, grid"):
        named_strategy(sites[0], OProjConfig(strategy="group"))
