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

import operator
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch.fx import GraphModule, Node

from oproj_pass.passes import ops
from oproj_pass.passes.effects import Dependence, mutated_inputs
from oproj_pass.passes.gemm import Gemm, is_per_head
from oproj_pass.passes.provenance import common_path, is_within, module_path, parent_path, rank_of
from oproj_pass.passes.schemes import match_gemm

_Label = TypeVar("_Label")
_FUNCTIONALIZED = frozenset(
    {torch.ops.higher_order.auto_functionalized, torch.ops.higher_order.auto_functionalized_v2}
)


@dataclass(frozen=True)
class End:
    """Where a result's way ended without a projection; ``weight`` if it met one in an unknown form."""

    node: Node
    reason: str
    weight: Node | None = None


@dataclass(eq=False)
class Attention:
    """One attention (or, with ``softmax`` False, another token mixer) and where its result went."""

    node: Node
    path: str
    softmax: bool
    ends: list[End] = field(default_factory=list)


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

    @property
    def scope(self) -> str:
        """The module that holds both the attention and this GEMM, ``""`` when it is not known."""
        paths = {common_path(source.path, self.path) for source in self.sources}
        return min(paths, key=len) or parent_path(self.path)


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
        self.pass_through = ops.PASS_THROUGH | ops.registered(*ops.QUANTISE)
        self.attentions: list[Attention] = []
        self.reached: list[Reached] = []
        self.dependence = Dependence(parameters)
        self.scores: set[Node] = set()
        self.probabilities: set[Node] = set()
        self.results: dict[Node, frozenset[Attention]] = defaultdict(frozenset)
        self.written: dict[Node, frozenset[Attention]] = defaultdict(frozenset)  # into the storage of a base
        self.hidden: dict[Node, frozenset[Reached]] = defaultdict(frozenset)

    def visit(self, node: Node) -> None:
        self.dependence.add(node)
        if node.op == "output":
            self._end(node, "leaves the graph")
        elif node.op != "placeholder" and self.dependence.is_activation(node):
            self._visit_operation(node)
        self._visit_writes(node)

    def _visit_operation(self, node: Node) -> None:
        operation = self._operation(node)
        if operation in self.attention_ops:
            self._start(node, softmax=True)
        elif operation in ops.FUSED_ATTENTION:
            self._visit_fused(node, node.args[ops.FUSED_ATTENTION[operation]])
        elif (gemm := match_gemm(node, self.dependence.is_activation)) and self._is_weight(gemm):
            self._visit_gemm(gemm)
        elif operation in ops.MATMUL:
            self._visit_matmul(node)
        elif operation in ops.TOKEN_MIXER or self._writes_a_step(node):
            self._start(node, softmax=False)
        elif operation in ops.SOFTMAX:
            self._visit_softmax(node)
        elif operation in ops.COMBINE:
            self._visit_combine(node)
        elif operation in self.pass_through or node.target is getattr:
            self._carry(node, self._activations(node))
        else:
            self._carry_marks(node)
            self._end(node, "goes into an operation the search does not know")

    def _operation(self, node: Node) -> Any:
        operation = ops.operation(node)
        return ops.packet(node.args[0]) if operation in _FUNCTIONALIZED else operation

    def _writes_a_step(self, node: Node) -> bool:
        """Whether a scan, written as a loop, stores its first step into a fresh buffer."""
        if node.target is not operator.setitem:
            return False
        is_fresh = self.dependence.base(node.args[0]).op != "placeholder"  # type: ignore[arg-type]
        return is_fresh and not any(map(self._reaching, node.all_input_nodes))

    def _is_weight(self, gemm: Gemm) -> bool:
        if self.parameters is None or gemm.refusal is not None:
            return True
        return self.parameters.issuperset(tensor.node for tensor in gemm.k.tensors)

    def _activations(self, node: Node) -> list[Node]:
        return self.dependence.activations(node)

    def _reaching(self, node: Node) -> frozenset[Attention]:
        return self.results[node] | self.written[self.dependence.base(node)]

    def _start(self, node: Node, *, softmax: bool) -> None:
        self._consume_hidden(node, self._activations(node))
        self._end(node, "goes into another attention or token mixer")
        attention = Attention(node, module_path(node), softmax)
        self.attentions.append(attention)
        self.results[node] = frozenset([attention])

    def _visit_fused(self, node: Node, weight: Any) -> None:
        self._start(node, softmax=True)
        (attention,) = self.results.pop(node)
        attention.ends.append(End(node, "is projected inside one fused operator", weight))

    def _visit_gemm(self, gemm: Gemm) -> None:
        self._consume_hidden(gemm.node, [gemm.input])
        if sources := self._reaching(gemm.input):
            reached = Reached(gemm, module_path(gemm.node), sources)
            self.reached.append(reached)
            self.hidden[gemm.node] = frozenset([reached])

    def _visit_matmul(self, node: Node) -> None:
        factors = self._factors(node)
        if len(factors) < 2:
            self._visit_product_with_constant(node, factors)
        elif any(source in self.probabilities for source in factors):
            self._start(node, softmax=True)
        else:
            self.scores.add(node)
            self._start(node, softmax=False)

    def _factors(self, node: Node) -> list[Node]:
        """The activations that a product multiplies, as far as a graph without names can tell.

        There a matrix that is a graph input counts as a weight, and so does any input that an attention's
        result is multiplied with: no attention multiplies its result with its cache.
        """
        activations = self._activations(node)
        if not self.dependence.anonymous:
            return activations
        weight_rank = 3 if any(map(self._reaching, activations)) else 2
        return [source for source in activations if not self._is_input(source, weight_rank)]

    def _is_input(self, source: Node, max_rank: int) -> bool:
        base = self.dependence.base(source)
        return base.op == "placeholder" and (rank_of(base) or 0) <= max_rank

    def _visit_product_with_constant(self, node: Node, factors: list[Node]) -> None:
        constants = [source for source in node.all_input_nodes if source not in factors]
        if all(is_per_head(node, weight) for weight in constants):
            self._carry(node, factors)
        else:
            weight = max(constants, key=lambda source: rank_of(source) or 0)
            self._end(node, "meets a weight in a form that is not in the table of GEMM forms", weight)

    def _visit_softmax(self, node: Node) -> None:
        if any(source in self.scores for source in self._activations(node)):
            self.probabilities.add(node)
        self._end(node, "goes into a softmax")

    def _visit_combine(self, node: Node) -> None:
        terms = self._activations(node)
        self._carry_marks(node)
        self.results[node] = _common([self._reaching(term) for term in terms]) or self._own_mixers(
            node, terms
        )
        self.hidden[node] = _common([self.hidden[term] for term in terms])
        if not self.results[node]:
            self._end(node, "joins the residual stream")

    def _own_mixers(self, node: Node, terms: list[Node]) -> frozenset[Attention]:
        """The mixers without softmax that the summing module ran itself: a recurrence, not the residual."""
        mixers = frozenset().union(*map(self._reaching, terms))
        path = module_path(node)
        return frozenset(mixer for mixer in mixers if path and mixer.path == path and not mixer.softmax)

    def _carry(self, node: Node, sources: list[Node]) -> None:
        self.results[node] = frozenset().union(*map(self._reaching, sources))
        self.hidden[node] = frozenset().union(*(self.hidden[source] for source in sources))
        self._carry_marks(node)

    def _carry_marks(self, node: Node) -> None:
        for marked in (self.scores, self.probabilities):
            if any(source in marked for source in node.all_input_nodes):
                marked.add(node)

    def _consume_hidden(self, consumer: Node, sources: list[Node]) -> None:
        for reached in frozenset().union(*(self.hidden[source] for source in sources)):
            if reached.scope and is_within(module_path(consumer), reached.scope):
                reached.feeds = reached.feeds or consumer

    def _end(self, node: Node, reason: str, weight: Node | None = None) -> None:
        if node.users or node.op == "output":  # not a mere check such as `_assert_tensor_metadata`
            for attention in frozenset().union(*map(self._reaching, node.all_input_nodes)):
                attention.ends.append(End(node, reason, weight))

    def _visit_writes(self, node: Node) -> None:
        for buffer in mutated_inputs(node):
            values = [source for source in self._activations(node) if source is not buffer]
            if values or self.dependence.is_activation(node):
                self.dependence.write(buffer)
            returned = self._operation(node) in ops.COMBINE  # its own rule decided on the sum
            sources = [] if returned else values
            self.written[self.dependence.base(buffer)] |= self.results[node].union(
                *map(self._reaching, sources)
            )


def _common(labels: list[frozenset[_Label]]) -> frozenset[_Label]:
    return frozenset().union(*labels) if labels and all(labels) else frozenset()
