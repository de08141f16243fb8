"""Reads what lies between an MLP's GEMMs, and proves it the same on a part of I, or says why it is not.

1. Collect the nodes between the ups and the down GEMM; nothing else may read them.
2. In graph order, tell what of I each of them holds: ``inner_rules``.
3. Note the sizes that they state: those of I shrink with it, those of the rows grow with them.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torch.fx import Node

from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.gemm.literals import Literal
from oproj_pass.passes.graph.effects import is_mere_check, mutated_inputs
from oproj_pass.passes.sites.inner_rules import hold
from oproj_pass.passes.sites.inner_state import Held, NotElementwise, Reading
from oproj_pass.passes.sites.scan import Scan


@dataclass(frozen=True)
class Inner:
    """What ``Mlp`` says of its ``inner`` nodes."""

    nodes: tuple[Node, ...]
    literals: tuple[Literal, ...]
    rows: tuple[Literal, ...]
    segments: int


def read_inner(ups: Sequence[Node], down: Gemm, between: Collection[Node], scan: Scan) -> Inner:
    """What lies between; ``between``: every node that holds results of the products ``ups``.

    Raises ``NotElementwise`` where a rank could not compute its part of I alone.
    """
    nodes = _nodes_to(down, between)
    _require_no_other_reader({*ups, *nodes}, down.node)
    reading = Reading(down, scan.dependence)
    for up in ups:
        reading.hold_result_of(up)
    for node in nodes:
        hold(reading, node)
    if reading.held.get(down.input) != Held(1):
        raise NotElementwise(f"does not bring all of its {down.k.extent} intermediate features to one GEMM")
    for scale in down.row_scales:
        if reading.held.get(scale.node) != Held(0, group=scale.features):
            raise NotElementwise(f"scales its product by `{scale.node.name}`, which is no scale of its rows")
    return Inner(
        tuple(nodes),
        tuple(dict.fromkeys(reading.literals)),
        tuple(dict.fromkeys(reading.rows)),
        _segments(reading, ups),
    )


def _segments(reading: Reading, ups: Sequence[Node]) -> int:
    """The parts, cut each by itself, of every up's result; consecutive pairs are cut as they are."""
    parts = {reading.of(up).parts for up in ups}
    apart = reading.segments - {1}
    if (apart and reading.interleaved) or (apart and parts != apart) or len(parts) > 1:
        raise NotElementwise(f"takes the results of `{ups[0].name}` apart in several ways")
    return max(apart, default=1)


def _nodes_to(down: Gemm, between: Collection[Node]) -> list[Node]:
    """The nodes of ``between`` that the GEMM's rows, or their scales, are computed from, in graph order."""
    pending = [down.input, *(scale.node for scale in down.row_scales)]
    found: set[Node] = set()
    while pending:
        node = pending.pop()
        if node in between and node not in found:
            found.add(node)
            pending += [*node.all_input_nodes, *_writers(node)]
    return sorted(found)


def _writers(node: Node) -> Iterator[Node]:
    yield from (user for user in node.users if node in mutated_inputs(user))


def _require_no_other_reader(nodes: Collection[Node], down: Node) -> None:
    for node in nodes:
        for user in node.users:
            if user in nodes or user is down or is_mere_check(user):
                continue
            where = "leaves the graph" if user.op == "output" else f"is also read by `{user.name}`"
            raise NotElementwise(f"has an intermediate result that {where} (`{node.name}`)")
