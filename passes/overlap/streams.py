"""Emits streams and events in the words of the compiler that will read them.

npugraph_ex: its own scopes, and the tagged events that its in-place pass understands (its ``record`` and
``wait`` operators emit no event). torchair: scopes and control edges of the GE graph. An event orders streams
but keeps no memory: ``hold`` does, where the compiler frees a tensor after its last reader in graph order.
"""

from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import has_side_effect

from oproj_pass.passes.overlap.marks import Does, Mark


class Streams(Protocol):
    """How a compiler spells a side stream. An event is whatever ``record`` returns."""

    def record(self, graph: Graph, name: str) -> Any:
        """Mark this point of the current stream; ``name`` is unique in the process's graphs of one model."""

    def wait(self, graph: Graph, event: Any) -> None:
        """Let what follows on the current stream wait for the event."""

    def enter(self, graph: Graph, stream: str) -> None:
        """Put what follows on the named stream."""

    def exit(self, graph: Graph) -> None:
        """Return to the stream before."""

    def hold(self, graph: Graph, tensor: Node) -> None:
        """Keep the tensor's memory until here."""

    def mark(self, node: Node) -> Mark | None:
        """What a node of this spelling does to streams, None for any other node."""


class NpugraphExStreams:
    """The spelling of npugraph_ex."""

    def __init__(self) -> None:
        import_module("npugraph_ex.ops._tagged_event")  # registers the operators
        self._register = import_module("npugraph_ex._acl_concrete_graph.graph_pass")._create_event_by_name

    def record(self, graph: Graph, name: str) -> str:
        """A tagged event; npugraph_ex makes one for each tag that its registry holds when it compiles."""
        self._register(name)
        graph.call_function(torch.ops.npugraph_ex.tagged_event_record.default, (name, True))
        return name

    def wait(self, graph: Graph, event: str) -> None:
        """Wait for a tagged event."""
        graph.call_function(torch.ops.npugraph_ex.tagged_event_wait.default, (event, True))

    def enter(self, graph: Graph, stream: str) -> None:
        """Open the scope of a labelled stream."""
        scope = torch.ops.npugraph_ex.scope_enter.default
        graph.call_function(scope, (["_user_stream_label"], [stream]))

    def exit(self, graph: Graph) -> None:
        """Close the scope."""
        graph.call_function(torch.ops.npugraph_ex.scope_exit.default)

    def hold(self, graph: Graph, tensor: Node) -> None:
        """Read the tensor once more: the generated code frees it after its last reader."""
        has_side_effect(torch.ops.oproj_pass.hold.default)
        graph.call_function(torch.ops.oproj_pass.hold.default, (tensor,))

    def mark(self, node: Node) -> Mark | None:
        """By its operator; an event is its tag."""
        own = torch.ops.npugraph_ex
        if node.target is own.tagged_event_record.default:
            return Mark(Does.RECORD, node.args[0])
        if node.target is own.tagged_event_wait.default:
            return Mark(Does.WAIT, node.args[0])
        return _scope_mark(node, own)


class TorchairStreams:
    """The spelling of torchair. The graph engine plans memory over all streams."""

    def __init__(self) -> None:
        import_module("torchair")  # registers the operators

    def record(self, graph: Graph, name: str) -> Node:
        """The end of a control edge."""
        return graph.call_function(torch.ops.air.record.default)

    def wait(self, graph: Graph, event: Node) -> None:
        """A control edge to the next operator."""
        graph.call_function(torch.ops.air.wait.default, ([event],))

    def enter(self, graph: Graph, stream: str) -> None:
        """Open the scope of a labelled stream."""
        graph.call_function(torch.ops.air.scope_enter.default, (["_user_stream_label"], [stream]))

    def exit(self, graph: Graph) -> None:
        """Close the scope."""
        graph.call_function(torch.ops.air.scope_exit.default)

    def hold(self, graph: Graph, tensor: Node) -> None:
        """Nothing to do."""

    def mark(self, node: Node) -> Mark | None:
        """By its operator; an event is the node that records it."""
        own = torch.ops.air
        if node.target is own.record.default:
            return Mark(Does.RECORD, node)
        if node.target is own.wait.default:
            return Mark(Does.WAIT, node.args[0][0])  # type: ignore[index]
        return _scope_mark(node, own)


def _scope_mark(node: Node, own: Any) -> Mark | None:
    if node.target is own.scope_enter.default:
        return Mark(Does.ENTER, node.args[1][0])  # type: ignore[index]
    return Mark(Does.EXIT) if node.target is own.scope_exit.default else None


@torch.library.custom_op("oproj_pass::hold", mutates_args=())
def hold(tensor: Tensor) -> None:
    """Does nothing; whoever calls it still needs the tensor."""


@hold.register_fake
def _(tensor: Tensor) -> None:
    return None


def put_on_stream(streams: Streams, stream: str, event: str, first: Node, behind: Node) -> Any:
    """Put the nodes from ``first`` up to ``behind`` on ``stream``, between an event and another one.

    ``event``: how both names begin. Returns the second, for the main stream to wait for.
    """
    graph = first.graph
    with graph.inserting_before(first):
        ready = streams.record(graph, f"{event}.ready")
        streams.enter(graph, stream)
        streams.wait(graph, ready)
    with graph.inserting_before(behind):
        done = streams.record(graph, f"{event}.done")
        streams.exit(graph)
    return done
