"""Follows the results of GEMMs, through what MLPs do between two of them, to the next GEMM.

This file decides reachability only: which GEMMs' results reach which GEMM, and whether by an activation. A
sum with anything else is the residual stream, and ends the walk; so does every operation that moves rows or
multiplies activations. ``inner`` decides whether what lies between may be cut.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torch.fx import Node

from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.effects import mutated_inputs
from oproj_pass.passes.sites.scan import Scan

_PRODUCT = ops.targets("mul", "imul")
_CARRIED = ops.ELEMENTWISE | ops.LAYOUT | ops.TRANSPOSE | ops.SELECT | ops.NORM | ops.SOFTMAX


@dataclass(frozen=True)
class Flow:
    """What a value is made of: the GEMMs ``ups``, and an activation or a product of theirs (``activated``).

    ``statistic``: a value a row, such as a norm's mean, which is no intermediate by itself.
    """

    ups: frozenset[Node]
    activated: bool = False
    statistic: bool = False


@dataclass(frozen=True)
class Candidate:
    """A GEMM that the activated results of other GEMMs reach, and every node that may lie between."""

    ups: tuple[Gemm, ...]
    down: Gemm
    between: Collection[Node]


def mlp_candidates(scan: Scan) -> Iterator[Candidate]:
    """Every GEMM behind others and an activation, in graph order; attention's GEMMs are none of them."""
    flows: dict[Node, Flow] = {}
    between: dict[Node, None] = {}
    for node in scan.gm.graph.nodes:
        if (gemm := scan.gemms.get(node)) is not None:
            flow = flows.get(gemm.input)
            if flow is not None and flow.activated and not (flow.ups | {node}) & scan.of_attention:
                yield Candidate(tuple(scan.gemms[up] for up in sorted(flow.ups)), gemm, between)
            if gemm.bias is None or not scan.dependence.is_activation(gemm.bias):
                flows[node] = Flow(frozenset((node,)))
        elif (found := flow_of(node, scan, flows)) is not None:
            filled = [buffer for buffer in mutated_inputs(node) if buffer not in flows]
            flows |= dict.fromkeys((node, *filled), found)
            between |= dict.fromkeys((node, *filled))


def flow_of(node: Node, scan: Scan, flows: Mapping[Node, Flow]) -> Flow | None:
    """What a node makes of the values before it; None where it is no GEMM's result any more."""
    if flows.keys().isdisjoint(node.all_input_nodes):
        return None
    operation = ops.operation(node)
    gates = operation in scan.gates
    if not gates and operation not in _CARRIED and operation not in scan.quantisations:
        return None
    filled = [*mutated_inputs(node)] if gates else []
    sources = [source for source in scan.dependence.activations(node) if source not in filled]
    known = [flows[source] for source in sources if source in flows]
    if not known or (len(known) < len(sources) and operation in ops.COMBINE):
        return None
    values = [flow for flow in known if not flow.statistic]
    is_product = operation in _PRODUCT and len(values) > 1
    return Flow(
        frozenset().union(*(flow.ups for flow in known)),
        operation in ops.ACTIVATION or gates or is_product or any(flow.activated for flow in values),
        (operation in ops.REDUCTION and operation in ops.NORM) or not values,
    )
