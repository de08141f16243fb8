"""Streams spelled as plain functions that do nothing, and a check of what a schedule on them orders."""

from torch.fx import Node

from oproj_pass.passes.overlap.marks import Does, Mark


def record(name):
    return None


def wait(name):
    return None


def enter(stream):
    return None


def leave():
    return None


def hold(tensor):
    return None


MARKS = {record: Does.RECORD, wait: Does.WAIT, enter: Does.ENTER, leave: Does.EXIT}


class PlainStreams:
    """A spelling that any machine can run."""

    def record(self, graph, name):
        graph.call_function(record, (name,))
        return name

    def wait(self, graph, event):
        graph.call_function(wait, (event,))

    def enter(self, graph, stream):
        graph.call_function(enter, (stream,))

    def exit(self, graph):
        graph.call_function(leave)

    def hold(self, graph, tensor):
        graph.call_function(hold, (tensor,))

    def mark(self, node):
        if node.target in MARKS:
            return Mark(MARKS[node.target], *node.args)
        return None


def streams_of(graph):
    """Each node's stream; None is the main one."""
    stack, found = [None], {}
    for node in graph.nodes:
        if node.target is enter:
            stack.append(node.args[0])
        found[node] = stack[-1]
        if node.target is leave:
            stack.pop()
    assert stack == [None]
    return found


def unordered_reads(graph):
    """Reads of a tensor of another stream that no event orders after its making, by vector clocks."""
    stream_of, clocks, marks, before = streams_of(graph), {}, {}, {}
    for position, node in enumerate(graph.nodes):
        stream = stream_of[node]
        clock = clocks.setdefault(stream, {})
        if node.target is record:
            marks[node.args[0]] = dict(clock)
        elif node.target is wait:
            for other, reached in marks[node.args[0]].items():
                clock[other] = max(clock.get(other, -1), reached)
        clock[stream] = position
        before[node] = dict(clock)
    positions = {node: position for position, node in enumerate(graph.nodes)}
    return [
        (source, node)
        for node in graph.nodes
        for source in node.all_input_nodes
        if source.op not in ("placeholder", "get_attr")
        and before[node].get(stream_of[source], -1) < positions[source]
    ]


def early_frees(graph):
    """Tensors of the main stream that may be freed while a side stream still reads them.

    The generated code frees a tensor after its last reader in graph order, for the stream that made it.
    """
    stream_of = streams_of(graph)
    return [
        node
        for node in graph.nodes
        if node.op not in ("placeholder", "get_attr")
        and any(stream_of[user] != stream_of[node] for user in node.users)
        and stream_of[node] is None
        and stream_of[_last(node)] != stream_of[node]
    ]


def _last(node: Node) -> Node:
    return max(node.users)
