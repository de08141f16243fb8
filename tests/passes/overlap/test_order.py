"""What a check of several streams' events refuses, by name: each schedule here is wrong in one way."""

import pytest
import torch
from torch.fx import Graph

from oproj_pass.errors import StreamOrderError
from oproj_pass.passes.overlap.order import require_stream_order
from tests.support.streams import PlainStreams

c10d, aten = torch.ops._c10d_functional, torch.ops.aten


def schedule(*steps):
    """A graph of ``("record", event)``, ``("wait", event)``, ``("enter", stream)``, ``("exit",)`` and nodes.

    A node is ``(name, operator, *names of what it reads)``.
    """
    graph, spelling, made = Graph(), PlainStreams(), {}
    made["x"] = graph.placeholder("x")
    for what, *arguments in steps:
        if hasattr(spelling, what):
            getattr(spelling, what)(graph, *arguments)
        else:
            operator, *read = arguments
            made[what] = graph.call_function(operator, tuple(made.get(name, name) for name in read))
    graph.output(made["x"])
    for node in graph.nodes:
        node.meta["val"] = torch.empty(4, 4)
    return graph


def gathered(name, source, group):
    """A collective over a group and its end."""
    start = (name, c10d.all_gather_into_tensor.default, source, 2, group)
    return start, (f"{name}.end", c10d.wait_tensor.default, name)


def beside(inner):
    """``inner`` on a side stream, in order."""
    return [("record", "ready"), ("enter", "side"), ("wait", "ready"), *inner, ("record", "done"), ("exit",)]


def test_takes_a_graph_of_one_stream_as_it_is():
    require_stream_order(schedule(("y", aten.relu.default, "x"), *gathered("a", "y", "g")), PlainStreams())


def test_takes_a_side_stream_between_two_events():
    made = [("y", aten.relu.default, "x"), *beside([("z", aten.relu.default, "y")])]
    require_stream_order(schedule(*made, ("wait", "done"), ("u", aten.relu.default, "z")), PlainStreams())


def test_refuses_a_wait_that_nothing_is_recorded_for():
    lost = schedule(("enter", "side"), ("wait", "lost"), ("exit",), ("y", aten.relu.default, "x"))
    with pytest.raises(
        StreamOrderError, match=r"`wait`: stream 'side' waits for the event 'lost' before any"
    ):
        require_stream_order(lost, PlainStreams())


def test_refuses_a_wait_before_its_record():
    graph = schedule(("enter", "side"), ("wait", "late"), ("exit",), ("record", "late"))
    message = "waits for the event 'late' before the main stream records it at `record`. This is"
    with pytest.raises(StreamOrderError, match=message):
        require_stream_order(graph, PlainStreams())


def test_names_the_circle_in_which_two_streams_wait_for_each_other():
    graph = schedule(
        ("enter", "side"), ("wait", "b"), ("record", "a"), ("exit",), ("wait", "a"), ("record", "b"),
    )  # fmt: skip
    circle = r"in a circle: record_1 -> wait -> record -> wait_1 -> record_1"
    with pytest.raises(StreamOrderError, match=circle):
        require_stream_order(graph, PlainStreams())


def test_refuses_a_read_that_no_event_orders_and_names_both_streams():
    graph = schedule(
        ("y", aten.relu.default, "x"), ("enter", "side"), ("z", aten.relu.default, "y"), ("exit",)
    )
    message = "`relu_default_1`: reads `relu_default` of the main stream on stream 'side', and no event"
    with pytest.raises(StreamOrderError, match=message):
        require_stream_order(graph, PlainStreams())


def at_once(first, second):
    """A collective on a side stream, and one on the main stream that does not wait for it."""
    return schedule(*beside(gathered("a", "x", first)), *gathered("b", "x", second), ("wait", "done"))


def test_refuses_collectives_of_two_groups_on_two_streams_at_once():
    with pytest.raises(StreamOrderError, match="while `all_gather_into_tensor_default` of another group may"):
        require_stream_order(at_once("g", "h"), PlainStreams())


def test_takes_collectives_of_one_group_which_run_one_after_the_other():
    require_stream_order(at_once("g", "g"), PlainStreams())
