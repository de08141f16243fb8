"""The runner: order, checks, record and log."""

import logging

import pytest
import torch
from torch.fx import symbolic_trace

from oproj_pass.passes import PassRecord, run_passes


class AddOne:
    name = "add_one"

    def __call__(self, gm, example_inputs):
        (output,) = gm.graph.find_nodes(op="output")
        with gm.graph.inserting_before(output):
            added = gm.graph.call_function(torch.add, (output.args[0], 1))
        output.args = (added,)
        return PassRecord(self.name, changed=(added,))


class Nothing:
    name = "nothing"

    def __call__(self, gm, example_inputs):
        return PassRecord(self.name)


class Breaks:
    name = "breaks"

    def __call__(self, gm, example_inputs):
        first, *_ = gm.graph.nodes
        (output,) = gm.graph.find_nodes(op="output")
        output.append(gm.graph.create_node("call_function", torch.add, (first, 1)))
        last = next(reversed(gm.graph.nodes))
        output.args = (last,)
        return PassRecord(self.name, changed=(last,))


def graph():
    gm = symbolic_trace(lambda x: x * 2)
    for node in gm.graph.nodes:
        node.meta["val"] = torch.empty(3)
    return gm


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
