"""Follows attention results through a graph to the first GEMMs with a stored weight.

One scan in graph order, linear in the graph:

1. Note where attention happens: a scaled-dot-product or registered attention operator, or, written by hand,
   a product of two activations, a softmax over it, and a product of that with an activation.
2. Carry each result through layout, cast, norm and gate nodes. A sum with anything that is not itself the
   same attention's result is the residual stream, and ends the walk.
3. Record each GEMM with a stored weight that a result reaches, and whether that GEMM's own result feeds
   another GEMM or attention of the same module: then it is a hidden layer (or a query projection).

Other token mixers (convolutions, scans, linear attention) are followed too, so that a report can name the
projections that are *not* attention's. This file decides reachability only; ``sites`` decides what is taken.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch.fx import GraphModule, Node

from oproj_pass.passes import ops
from oproj_pass.passes.effects import Aliases, mutated_inputs
from oproj_pass.passes.gemm import Gemm, match_gemm
from oproj_pass.passes.provenance import is_within, module_path, parent_path, rank_of, value_of

_Label = TypeVar("_Label")
_FUNCTIONALIZED = frozenset(
    {torch.ops.higher_order.auto_functionalized, torch.ops.higher_order.auto_functionalized_v2}
)


@dataclass(eq=False)
class Attention:
    """One attention (or, with ``softmax`` False, another token mixer) and where its result went."""

    node: Node
    path: str
    softmax: bool
    ended_at: list[tuple[Node, str]] = field(default_factory=list)


@dataclass(eq=False)
class Reached:
    """A GEMM with a stored weight that attention results reach."""

    gemm: Gemm
    path: str
    sources: frozenset[Attention]
    feeds: Node | None = None  # the GEMM or attention of the same module that reads its result

    @property
    def is_attention(self) -> bool:
        """Whether a softmax attention reaches it, not only another token mixer."""
        return any(source.softmax for source in self.sources)


def trace_attention(
    gm: GraphModule, parameters: Iterable[Node] | None, attention_ops: frozenset[Any] = frozenset()
) -> tuple[list[Attention], list[Reached]]:
    """Every attention of the graph, and every GEMM their results reach, in graph order.

    ``parameters`` are the placeholders that hold stored weights (None: any may); ``attention_ops`` further
    operator packets that count as attention.
    """
    trace = _Trace(parameters, ops.ATTENTION | ops.registered(*ops.ENGINE_ATTENTION) | attention_ops)
    for node in gm.graph.nodes:
        trace.visit(node)
    return trace.attentions, trace.reached


class _Trace:
    def __init__(self, parameters: Iterable[Node] | None, attention_ops: frozenset[Any]) -> None:
        self.parameters = None if parameters is None else frozenset(parameters)
        self.attention_ops = attention_ops
        self.attentions: list[Attention] = []
        self.reached: list[Reached] = []
        self.aliases = Aliases()
        self.static: set[Node] = set()  # depends on no activation
        self.scores: set[Node] = set()
        self.probabilities: set[Node] = set()
        self.results: dict[Node, frozenset[Attention]] = defaultdict(frozenset)
        self.hidden: dict[Node, frozenset[Reached]] = defaultdict(frozenset)

    def visit(self, node: Node) -> None:
        self.aliases.add(node)
        if self._is_static(node):
            self.static.add(node)
        elif node.op == "output":
            self._end(node, "leaves the graph")
        elif node.op != "placeholder":
            self._visit_operation(node)
            self._spread_to_mutated(node)

    def _is_static(self, node: Node) -> bool:
        if node.op == "placeholder":
            is_parameter = self.parameters is not None and node in self.parameters
            return is_parameter or isinstance(value_of(node), torch.SymInt | int | float)
        if isinstance(value_of(node), torch.SymInt | int | float | bool):
            return True
        return node.op != "output" and all(source in self.static for source in node.all_input_nodes)

    def _visit_operation(self, node: Node) -> None:
        operation = self._operation(node)
        if operation in self.attention_ops:
            self._start(node, softmax=True)
        elif (gemm := match_gemm(node)) and self._is_weight(gemm):
            self._visit_gemm(gemm)
        elif operation in ops.MATMUL:
            self._visit_matmul(node)
        elif operation in ops.TOKEN_MIXER:
            self._start(node, softmax=False)
        elif operation in ops.SOFTMAX:
            if node.args[0] in self.scores:
                self.probabilities.add(node)
            self._end(node, "goes into a softmax")
        elif operation in ops.COMBINE:
            self._visit_combine(node)
        elif operation in ops.PASS_THROUGH or node.target is getattr:
            self._carry(node, self._activations(node))
        else:
            self._end(node, "goes into an operation the search does not know")

    def _operation(self, node: Node) -> Any:
        operation = ops.operation(node)
        return ops.packet(node.args[0]) if operation in _FUNCTIONALIZED else operation

    def _is_weight(self, gemm: Gemm) -> bool:
        source = gemm.weight.source
        known = self.parameters is None or source in self.parameters
        return known and rank_of(source) in (2, None)

    def _activations(self, node: Node) -> list[Node]:
        return [source for source in node.all_input_nodes if source not in self.static]

    def _start(self, node: Node, *, softmax: bool) -> None:
        self._consume_hidden(node, self._activations(node))
        attention = Attention(node, module_path(node), softmax)
        self.attentions.append(attention)
        self.results[node] = frozenset([attention])

    def _visit_gemm(self, gemm: Gemm) -> None:
        self._consume_hidden(gemm.node, [gemm.input])
        if self.results[gemm.input]:
            reached = Reached(gemm, module_path(gemm.node), self.results[gemm.input])
            self.reached.append(reached)
            self.hidden[gemm.node] = frozenset([reached])

    def _visit_matmul(self, node: Node) -> None:
        activations = self._activations(node)
        if len(activations) < 2:
            self._visit_static_matmul(node, activations)
        elif any(source in self.probabilities for source in activations):
            self._start(node, softmax=True)
        else:
            self.scores.add(node)
            self._start(node, softmax=False)

    def _visit_static_matmul(self, node: Node, activations: list[Node]) -> None:
        weights = [source for source in node.all_input_nodes if source in self.static]
        if any(rank_of(weight) == 2 for weight in weights):
            self._end(node, "meets a weight in a form that is not in the table of GEMM forms")
        else:  # one small matrix per head
            self._carry(node, activations)

    def _visit_combine(self, node: Node) -> None:
        activations = self._activations(node)
        if any(source in self.scores for source in activations):
            self.scores.add(node)
        self.results[node] = self._common(self.results, activations)
        self.hidden[node] = self._common(self.hidden, activations)
        if not self.results[node]:
            self._end(node, "joins the residual stream")

    @staticmethod
    def _common(labels: dict[Node, frozenset[_Label]], sources: list[Node]) -> frozenset[_Label]:
        found = [labels[source] for source in sources]
        return frozenset().union(*found) if found and all(found) else frozenset()

    def _carry(self, node: Node, sources: list[Node]) -> None:
        self.results[node] = frozenset().union(*(self.results[source] for source in sources))
        self.hidden[node] = frozenset().union(*(self.hidden[source] for source in sources))
        for marked in (self.scores, self.probabilities):
            if any(source in marked for source in sources):
                marked.add(node)

    def _consume_hidden(self, consumer: Node, sources: list[Node]) -> None:
        for reached in frozenset().union(*(self.hidden[source] for source in sources)):
            scope = parent_path(reached.path)
            if scope and is_within(module_path(consumer), scope):
                reached.feeds = reached.feeds or consumer

    def _end(self, node: Node, reason: str) -> None:
        for attention in frozenset().union(*(self.results[source] for source in node.all_input_nodes)):
            attention.ended_at.append((node, reason))

    def _spread_to_mutated(self, node: Node) -> None:
        for target in mutated_inputs(node):
            others = (source for source in node.all_input_nodes if source is not target)
            written = self.results[node].union(*(self.results[source] for source in others))
            for alias in self.aliases.of(target) if written else ():
                self.static.discard(alias)
                self.results[alias] |= written
