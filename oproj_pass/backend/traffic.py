"""How many bytes a rank sends in a call of a rewritten graph, read from the collectives in it.

What stays on the rank is not sent: of n equal parts n - 1 travel. A ring sends as much as a mesh. A fused
operator shows no bytes, so a graph that has one has no traffic that could be stated.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from oproj_pass.backend.symbols import BroughtSymbols, Expression, evaluate, expression_of
from oproj_pass.passes.graph.collectives import collective_of
from oproj_pass.passes.graph.process_groups import process_group
from oproj_pass.passes.graph.provenance import value_of

# Of the bytes that a rank brings, how many it sends to the other n - 1 ranks, times n.
_SENT_TIMES_N: Mapping[str, int] = {"all_to_all_single": 1, "reduce_scatter_tensor": 1, "all_reduce": 2}
_TO_EVERY_RANK = "all_gather_into_tensor"


class GraphTraffic:
    """The bytes that a rank sends to its peers in one call of a graph, as a function of its row counts."""

    def __init__(self, nbytes: int | Expression, symbols: BroughtSymbols) -> None:
        self._nbytes, self._symbols = nbytes, symbols

    @classmethod
    def of(cls, gm: GraphModule, inputs: Sequence[Node]) -> "GraphTraffic | None":
        """The traffic of ``gm`` with the placeholders ``inputs``; None where the graph does not show it."""
        sent = [_sent(node) for node in gm.graph.nodes if collective_of(node) is not None]
        known = [nbytes for nbytes in sent if nbytes is not None]
        if len(known) < len(sent):
            return None
        total = sum(known)
        symbols = BroughtSymbols.of([total], inputs)
        return None if symbols is None else cls(total, symbols)

    def of_call(self, arguments: Sequence[Any]) -> int:
        """Bytes of a call with these arguments."""
        return evaluate(self._nbytes, self._symbols.values(arguments))

    def of_rows(self, rows: int) -> int | None:
        """Bytes of a call where everything symbolic is that row count; None where sizes are several."""
        if len(self._symbols.places) > 1:
            return None
        return evaluate(self._nbytes, dict.fromkeys(self._symbols.places, rows))


def _sent(node: Node) -> int | Expression | None:
    collective, source = collective_of(node), value_of(node.all_input_nodes[0])
    if collective is None or collective.is_fused or not isinstance(source, Tensor):
        return None
    brought = expression_of(prod(source.shape)) * source.dtype.itemsize
    size = process_group(str(node.args[-1])).size()
    if collective.name == _TO_EVERY_RANK:
        return brought * (size - 1)
    if (times := _SENT_TIMES_N.get(collective.name)) is None:
        return None
    return brought * times * (size - 1) // size
