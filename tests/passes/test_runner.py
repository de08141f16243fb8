"""The runner: order, checks, record and log."""

import logging

import pytest
import torch

from oproj_pass.passes import PassRecord, run_passes
from tests.support.passes import AddOne, Nothing, graph


class Breaks:
    name = "breaks"

    def __call__(self, gm, example_inputs):
        first, *_ = gm.graph.nodes
        (output,) = gm.graph.find_nodes(op="output")
        output.append(gm.graph.create_node("call_function", torch.add, (first, 1)))
        last = next(reversed(gm.graph.nodes))
        output.args = (last,)
        return PassRecord(self.name, changed=(last,))


def test_applies_passes_in_order_and_recompiles():
    gm = graph()
    records = run_passes(gm, (), [AddOne(), Nothing(), AddOne()])
    assert [record.name for record in records] == ["add_one", "nothing", "add_one"]
    assert [record.is_clean for record in records] == [False, True, False]
    assert torch.equal(gm(torch.ones(3)), torch.full((3,), 4.0))


def test_gives_changed_nodes_their_values():
    gm = graph()
    (record,) = run_passes(gm, (), [AddOne()])
    assert record.changed[0].meta["val"].shape == (3,)


def test_refuses_a_graph_that_a_pass_broke():
    with pytest.raises(RuntimeError, match="used before it has been defined"):
        run_passes(graph(), (), [Breaks()])


def test_logs_each_pass_with_its_number_and_time(caplog):
    with caplog.at_level(logging.INFO, logger="oproj_pass"):
        run_passes(graph(), (), [AddOne(), Nothing()])
    assert "pass 1/2 add_one" in caplog.text
    assert "pass 2/2 nothing" in caplog.text
    assert "ms" in caplog.text
