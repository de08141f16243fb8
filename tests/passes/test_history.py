"""The record of a sequence of passes, and the diff between any two states of the graph."""

import json

import pytest
import torch
from rich.console import Console

from oproj_pass.errors import ConfigError
from oproj_pass.passes import Exchange, ShardOProj, run_passes
from oproj_pass.passes.history import PassHistory
from tests.support.models import decoder
from tests.support.passes import AddOne, Nothing, graph


class Fails:
    name = "fails"

    def __call__(self, gm, example_inputs):
        raise ConfigError("no")


def exported():
    program = torch.export.export(decoder(layers=2), (torch.randn(4, 32),))
    return program.graph_module, program.graph_signature.inputs_to_parameters


def test_returns_what_run_passes_returns():
    passes = [AddOne(), Nothing()]
    assert [r.name for r in PassHistory().run(graph(), (), passes)] == [
        r.name for r in run_passes(graph(), (), passes)
    ]


def test_compares_any_two_states():
    history = PassHistory()
    history.run(graph(), (), [AddOne(), Nothing(), AddOne()])
    added = {
        pair: history.diff(*pair).summary()["added"] for pair in [(0, 1), (1, 2), (0, 2), (0, 3), (2, 3)]
    }
    assert added == {(0, 1): 1, (1, 2): 0, (0, 2): 1, (0, 3): 2, (2, 3): 1}
    assert history.diff(3, 0).summary()["removed"] == 2


def test_shows_all_states_side_by_side():
    history = PassHistory()
    history.run(graph(), (), [AddOne(), Nothing(), AddOne()])
    compared = history.side_by_side()
    assert compared.names == ("before", "1 add_one", "2 nothing", "3 add_one")
    assert [diff.summary()["added"] for diff in compared.diffs] == [1, 0, 1]


def test_continues_with_a_second_run():
    gm, history = graph(), PassHistory()
    history.run(gm, (), [AddOne()])
    history.run(gm, (), [AddOne()])
    assert [step.name for step in history.steps] == ["add_one", "add_one"]
    assert history.diff(0, 2).summary()["added"] == 2


def test_records_what_the_sharding_pass_matched():
    gm, parameters = exported()
    history = PassHistory()
    exclude = ["layers.0.*"]
    history.run(gm, (), [ShardOProj(Exchange(2, "group"), parameters=parameters, exclude=exclude)])
    (step,) = history.steps
    assert step.matches == ("layers.1.attn.o_proj",)
    assert [miss.path for miss in step.near_misses] == ["layers.0.attn.o_proj"]
    assert step.num_changed > 0
    assert history.diff(0, 1).summary()["collectives"]["all_to_all_single"] == {"before": 0, "after": 1}


def test_keeps_no_states_where_none_are_wanted():
    history = PassHistory(snapshots=False)
    history.run(graph(), (), [AddOne()])
    assert len(history.steps) == 1
    with pytest.raises(ConfigError, match="snapshots=True"):
        history.diff(0, 1)


@pytest.mark.parametrize("number", [-1, 2])
def test_refuses_a_state_that_there_is_not(number):
    history = PassHistory()
    history.run(graph(), (), [AddOne()])
    with pytest.raises(ConfigError, match=rf"no state {number}: states are 0 .* to 1"):
        history.state(number)


def test_refuses_every_state_before_the_first_run():
    with pytest.raises(ConfigError, match="nothing has run"):
        PassHistory().state(0)


def test_keeps_the_states_until_a_pass_fails():
    history = PassHistory()
    with pytest.raises(ConfigError, match="no"):
        history.run(graph(), (), [AddOne(), Fails()])
    assert history.diff(0, 1).summary()["added"] == 1


def test_shows_the_sequence_as_a_table_and_as_json():
    history = PassHistory()
    history.run(graph(), (), [AddOne(), Nothing()])
    console = Console(width=100, force_terminal=False)
    with console.capture() as capture:
        console.print(history)
    _, first, second = capture.get().splitlines()
    assert first.split() == ["1", "add_one", "0", "0", "1", "250.0"]
    assert second.split()[:2] == ["2", "nothing"]
    assert [step["name"] for step in json.loads(json.dumps(history.to_dict()))["steps"]] == [
        "add_one",
        "nothing",
    ]
