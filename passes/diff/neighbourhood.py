"""Labels nodes by what surrounds them, so that equal surroundings get equal labels in both graphs.

These are Weisfeiler-Lehman labels on directed dataflow: a node starts as its operator, constants and
module path, and each round takes in the labels of its inputs (in order) and users. Inputs of the graph
keep their identity, so everything near a weight is told apart from the same place in another layer.
"""

from collections.abc import Iterator

from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot, NodeSnapshot, Ref

__all__ = ["MAX_TELLING_USERS", "neighbourhood_labels"]

# A value with more readers than this (a token count, say) says nothing about which of them is meant.
MAX_TELLING_USERS = 8


def neighbourhood_labels(
    snapshot: GraphSnapshot, numbers: dict[object, int], radius: int
) -> Iterator[dict[str, int]]:
    """For each radius from 0 up: a label for each node, equal where that much around it is equal.

    `numbers` turns what was seen into labels; share one between the graphs to compare.
    """

    def number(seen: object) -> int:
        return numbers.setdefault(seen, len(numbers))

    labels = {node.name: number(_own(node)) for node in snapshot.nodes}
    yield labels
    telling = {
        name: readers if len(readers) <= MAX_TELLING_USERS else [] for name, readers in snapshot.users.items()
    }
    for _ in range(radius):
        known = labels
        labels = {}
        for node in snapshot.nodes:
            inputs = tuple([known[name] for name in node.inputs])
            users = tuple(sorted([(known[user], position) for user, position in telling[node.name]]))
            own = known[node.name]
            labels[node.name] = own if node.is_input else number((own, inputs, users))
        yield labels


def _own(node: NodeSnapshot) -> tuple[object, ...]:
    if node.is_input:
        return node.op, node.target
    return node.op, node.target, node.path, tuple("" if isinstance(part, Ref) else part for part in node.args)
