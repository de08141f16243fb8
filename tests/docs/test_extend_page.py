"""The page on extending: its toys run, on every rank, and are wrong when what they rest on is taken away."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

from oproj_pass.passes import STRATEGIES, Exchange, ShardOProj, run_passes, shard_of
from tests.support.fake import fake_world, run_on_all_ranks
from tests.support.strategies import next_ranks_part

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)
SIZE = 2


@pytest.fixture(scope="module")
def page():
    """What the page defines and prints; the table of strategies is as it was afterwards."""
    before, names = dict(STRATEGIES), {"__name__": "extend_page"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for kind, code in BLOCK.findall(PAGE):
            if kind == "python":
                exec(code, names)
    yield names, printed.getvalue()
    STRATEGIES.clear()
    STRATEGIES.update(before)


def test_prints_what_the_page_says(page):
    assert page[1] == "".join(text for kind, text in BLOCK.findall(PAGE) if kind == "text")


def test_each_toy_is_short():
    code = [text.rstrip().split("\n") for kind, text in BLOCK.findall(PAGE) if kind == "python"]
    assert len(code) == 3
    strategy, role = code[0], code[2]
    assert len([line for line in strategy[strategy.index("class RowInDouble:") :] if line]) <= 40
    assert len([line for line in role[: role.index("class MLP(nn.Module):")] if line]) <= 40


def largest_error(model, shard, slice_of=shard_of):
    program = torch.export.export(model.eval(), (torch.randn(3, 32),))
    names = program.graph_signature.inputs_to_parameters
    inputs = [(torch.randn(3, 32),) for _ in range(SIZE)]
    with fake_world(SIZE) as group:
        record = shard(program, Exchange(SIZE, group))
        weights = {placeholder: model.get_parameter(name) for placeholder, name in names.items()}
        outputs = run_on_all_ranks(program.graph_module, record, weights, inputs, SIZE, slice_of)
    return max((y - model(x)).abs().max().item() for y, (x,) in zip(outputs, inputs, strict=True))


def in_double(names):
    def shard(program, exchange):
        parameters = program.graph_signature.inputs_to_parameters
        policy = names["in_double"](exchange)
        (record,) = run_passes(program.graph_module, (), [ShardOProj(policy, parameters=parameters)])
        return record

    return shard


def test_the_strategy_keeps_every_ranks_result(page):
    names, _ = page
    assert largest_error(names["Attention"](), in_double(names)) < 1e-6


def test_the_strategy_is_wrong_with_another_ranks_part(page):
    names, _ = page
    assert largest_error(names["Attention"](), in_double(names), next_ranks_part) > 1e-2


@pytest.mark.parametrize("strategy", ["row", "column", "row_in_double"])
def test_the_role_keeps_every_ranks_result_by_every_strategy(page, strategy):
    names, _ = page

    def shard(program, exchange):
        return names["shard_down_projections"](program, exchange, strategy)

    assert largest_error(names["MLP"](), shard) < 1e-6
    assert largest_error(names["MLP"](), shard, next_ranks_part) > 1e-2
