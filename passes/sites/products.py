"""What no form of the table matches: a product's factors that depend on a token, and why a way ends."""

from collections.abc import Callable, Collection
from typing import Any

from torch.fx import Node

from oproj_pass.passes.graph.dependence import Dependence
from oproj_pass.passes.graph.provenance import rank_of, stored_inputs


def factors_of(node: Node, dependence: Dependence, reaching: Callable[[Node], Collection[Any]]) -> list[Node]:
    """The activations that a product multiplies, as far as a graph without names can tell.

    There a matrix that is a graph input counts as a weight, and so does any input that an attention's
    result is multiplied with: no attention multiplies its result with its cache.
    """
    activations = dependence.activations(node)
    if not dependence.anonymous:
        return activations
    weight_rank = 3 if any(map(reaching, activations)) else 2
    bases = {source: dependence.base(source) for source in activations}
    return [
        source
        for source, base in bases.items()
        if base.op != "placeholder" or (rank_of(base) or 0) > weight_rank
    ]


def why_no_form(weight: Node) -> str:
    """What is wrong with the constant ``weight`` of a product that no form of the table matches."""
    if not stored_inputs(weight):
        return (
            "meets a weight that is a constant of the graph, not an input (frozen, or lifted by an export),"
        )
    return "meets a weight in a form that is not in the table of GEMM forms"


def why_no_parameter(weight: Node) -> str:
    """What is wrong with a GEMM's ``weight`` that is a graph input, and no stored weight."""
    return f"meets `{weight.name}`, no parameter or buffer of the model but a constant or another input,"


def why_unknown(node: Node) -> str:
    """Why the search does not follow an operation."""
    if node.op == "call_module":
        return "goes into a module that the graph calls as a whole"
    return "goes into an operation the search does not know"
