"""Follows attention results through a graph to the first GEMMs with a stored weight.

One scan in graph order, linear in the graph:

1. Note where attention happens: a scaled-dot-product or registered attention operator, or, written by hand,
   a product of two activations, a softmax over it, and a product of that with an activation. ``token_axis``
   tells whether the softmax weighs tokens at all.
2. Carry each result through layout, cast, norm and gate nodes. A sum with anything that is not itself the
   same attention's result is the residual stream, and ends the walk.
3. Record each GEMM with a stored weight that a result reaches, and whether that GEMM's own result feeds
   another GEMM or attention of the same module: then it is a hidden layer (or a query projection).

Other token mixers (convolutions, scans, linear attention) are followed too, so that a report can name the
projections that are *not* attention's. In graphs inside the graph (``subgraphs``) a result that leaves is
followed on, and what stays is only named. This file decides reachability only; ``sites`` what is taken.
"""

import logging
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.fx import GraphModule, Node

from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.gemm.per_head import is_per_head
from oproj_pass.passes.gemm.schemes import match_gemm
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.dependence import Dependence
from oproj_pass.passes.graph.effects import mutated_inputs
from oproj_pass.passes.graph.provenance import is_within, module_path, rank_of
from oproj_pass.passes.graph.subgraphs import Subgraph, subgraphs
from oproj_pass.passes.sites.attention_results import Attention, End, Reached
from oproj_pass.passes.sites.labels import Labels
from oproj_pass.passes.sites.products import factors_of, why_no_form, why_no_parameter, why_unknown
from oproj_pass.passes.sites.token_axis import TokenAxes

logger = logging.getLogger(__name__)

_SCORE, _PROBABILITY = "score", "probability"


class AttentionTrace:
    """One scan of a graph: every attention, every GEMM, and the GEMMs that results reach, in graph order.

    ``parameters`` are the placeholders that hold stored weights, with their paths (None: any may);
    ``attention_ops`` further operator packets that count as attention. ``inner`` are the scans of the graphs
    inside the graph.
    """

    def __init__(
        self,
        gm: GraphModule,
        parameters: Mapping[Node, str] | None,
        attention_ops: frozenset[Any] = frozenset(),
    ) -> None:
        self.parameters = parameters
        self.attention_ops = ops.ATTENTION | ops.registered(*ops.ENGINE_ATTENTION) | attention_ops
        self.names_modules = parameters is not None or any(map(module_path, gm.graph.nodes))
        self.attentions: list[Attention] = []
        self.reached: list[Reached] = []
        self.products: list[Node] = []
        self.gemms: dict[Node, Gemm] = {}
        self.inner: list[tuple[Subgraph, AttentionTrace]] = []
        self.dependence = Dependence(parameters)
        self.results: Labels[Attention] = Labels(self.dependence.base)
        self.hidden: Labels[Reached] = Labels(self.dependence.base)
        self.marks: Labels[str] = Labels(self.dependence.base)
        self.token_axes = TokenAxes()
        self._rules: dict[Any, Callable[[Node], object]] = {
            **dict.fromkeys(ops.PASS_THROUGH | ops.registered(*ops.QUANTISE) | {getattr}, self._carry),
            **dict.fromkeys(ops.COMBINE, self._visit_combine),
            **dict.fromkeys(ops.SOFTMAX, self._visit_softmax),
            **dict.fromkeys(ops.TOKEN_MIXER, self._visit_mixer),
            **dict.fromkeys(ops.MATMUL, self._visit_matmul),
            **dict.fromkeys(ops.FUSED_ATTENTION, self._visit_fused),
            **dict.fromkeys(self.attention_ops, self._visit_attention),
        }
        for node in gm.graph.nodes:
            self._visit(node)

    @property
    def leaving(self) -> list[Attention]:
        """The attentions whose results reach no GEMM here, but the graph's output."""
        served = {source for reached in self.reached for source in reached.sources}
        lost = [attention for attention in self.attentions if attention not in served]
        return [attention for attention in lost if any(end.node.op == "output" for end in attention.ends)]

    def _visit(self, node: Node) -> None:
        self.dependence.add(node)
        is_decided = True
        if node.op == "output":
            self._end(node, "leaves the graph")
        elif node.op != "placeholder" and self.dependence.is_activation(node):
            try:
                is_decided = self._visit_operation(node)
            except Exception as error:  # a call that no rule foresaw costs its site, never the compile
                logger.warning("the search cannot read `%s`", node.format_node(), exc_info=True)
                self._end(node, f"meets a call that the search cannot read ({type(error).__name__}: {error})")
        for buffer in mutated_inputs(node):
            self._visit_write(node, buffer, is_decided)

    def _visit_operation(self, node: Node) -> bool:
        """Whether a rule decided what the node's result is, or what it writes."""
        rule = self._rules.get(ops.functionalized_operation(node))
        if rule is not None:
            rule(node)
        elif bodies := [*subgraphs(node)]:
            self._visit_subgraphs(node, bodies)
        elif self._writes_a_step(node):
            self._visit_mixer(node)
        elif not self._visit_gemm(node):
            self._carry_marks(node)
            self._end(node, why_unknown(node))
            return False
        return True

    def _writes_a_step(self, node: Node) -> bool:
        """Whether a scan, written as a loop, stores its first step into a fresh buffer."""
        if node.target is not operator.setitem:
            return False
        is_fresh = self.dependence.base(node.args[0]).op != "placeholder"  # type: ignore[arg-type]
        return is_fresh and not self.results.of_any(node.all_input_nodes)

    def _is_weight(self, gemm: Gemm) -> bool:
        if self.parameters is None or gemm.refusal is not None:
            return True
        return all(tensor.node in self.parameters for tensor in gemm.k.tensors)

    def _activations(self, node: Node) -> list[Node]:
        return self.dependence.activations(node)

    def _start(self, node: Node, *, softmax: bool, values: Node | None = None) -> Attention:
        self._consume_hidden(node, self._activations(node))
        self._end(node, "goes into another attention or token mixer")
        path = module_path(node) if self.names_modules else None
        refusal = None if values is None else self.token_axes.refusal_of(node, values)
        attention = Attention(node, path, softmax, refusal)
        self.attentions.append(attention)
        self.results.put(node, [attention])
        return attention

    def _visit_attention(self, node: Node) -> None:
        is_of_torch = ops.functionalized_operation(node) in ops.ATTENTION
        self._start(node, softmax=True, values=argument(node, 2, "value", None) if is_of_torch else None)

    def _visit_mixer(self, node: Node) -> None:
        self._start(node, softmax=False)

    def _visit_fused(self, node: Node) -> None:
        weight: Any = node.args[ops.FUSED_ATTENTION[ops.functionalized_operation(node)]]
        attention = self._start(node, softmax=True)
        self.results.put(node, [])
        attention.ends.append(End(node, "is projected inside one fused operator", weight))

    def _visit_subgraphs(self, node: Node, bodies: list[Subgraph]) -> None:
        """An attention whose result leaves its body goes on from ``node``; the others stay inside."""
        self._end(node, "goes into a graph of its own")
        traces = [(body, self._trace_inside(body)) for body in bodies]
        self.inner += traces
        leaving = [
            Attention(node, attention.path, attention.softmax, attention.refusal)
            for _, trace in traces
            for attention in trace.leaving
        ]
        self.attentions += leaving
        self.results.put(node, leaving)

    def _trace_inside(self, body: Subgraph) -> "AttentionTrace":
        parameters = None
        if self.parameters is not None and body.inputs is not None:
            stored = {inner: outer for inner, outer in body.inputs.items() if outer in self.parameters}
            parameters = {inner: self.parameters[outer] for inner, outer in stored.items()}
        return AttentionTrace(body.module, parameters, self.attention_ops)

    def _visit_gemm(self, node: Node) -> bool:
        """Whether the node is a GEMM with a stored weight, or takes the place of one."""
        gemm = match_gemm(node, self.dependence.is_activation)
        if gemm is None:
            return False
        if self._is_weight(gemm):
            self._note_gemm(gemm)
        elif gemm.form.name in ("linear", "addmm") and self.results.at(gemm.input):
            self._end(node, why_no_parameter(gemm.weight.node), gemm.weight.node)
        else:
            return False
        return True

    def _note_gemm(self, gemm: Gemm) -> None:
        self.gemms[gemm.node] = gemm
        self._consume_hidden(gemm.node, [gemm.input])
        joins = gemm.bias is not None and self.dependence.is_activation(gemm.bias)
        if sources := self.results.at(gemm.input):
            reached = Reached(gemm, module_path(gemm.node), sources)
            self.reached.append(reached)
            self.hidden.put(gemm.node, [] if joins else [reached])
        if gemm.bias is not None and joins:  # addmm(residual, x, weight)
            self._end_of(self.results.at(gemm.bias), End(gemm.node, "joins the residual stream"))

    def _visit_matmul(self, node: Node) -> None:
        self.products.append(node)
        if self._visit_gemm(node):
            return
        factors = factors_of(node, self.dependence, self.results.at)
        values = [source for source in factors if _PROBABILITY not in self.marks.at(source)]
        if len(factors) < 2:
            self._visit_product_with_constant(node, factors)
        elif len(values) < len(factors):
            self._start(node, softmax=True, values=values[0] if len(values) == 1 else None)
        else:
            self.marks.put(node, [_SCORE])
            self._start(node, softmax=False)

    def _visit_product_with_constant(self, node: Node, factors: list[Node]) -> None:
        constants = [source for source in node.all_input_nodes if source not in factors]
        if all(is_per_head(node, weight) for weight in constants):
            self._carry_from(node, factors)
        else:
            weight = max(constants, key=lambda source: rank_of(source) or 0)
            self._end(node, why_no_form(weight), weight)

    def _visit_softmax(self, node: Node) -> None:
        if _SCORE in self.marks.of_any(self._activations(node)):
            self.marks.put(node, [_PROBABILITY])
        self._end(node, "goes into a softmax")

    def _visit_combine(self, node: Node) -> None:
        if not self._may_be_reached(node):
            return
        terms = self._activations(node)
        self._carry_marks(node)
        joined = self.results.of_all(terms) or self._own_mixers(node, terms)
        self.results.put(node, joined)
        self.hidden.put(node, self.hidden.of_all(terms))
        if not joined:
            self._end(node, "joins the residual stream")

    def _own_mixers(self, node: Node, terms: list[Node]) -> frozenset[Attention]:
        """The mixers without softmax that the summing module ran itself: a recurrence, not the residual."""
        path = module_path(node)
        mixers = self.results.of_any(terms)
        return frozenset(mixer for mixer in mixers if path and mixer.path == path and not mixer.softmax)

    def _carry(self, node: Node) -> None:
        if self._may_be_reached(node):
            self._carry_from(node, self._activations(node))

    def _may_be_reached(self, node: Node) -> bool:
        """False if nothing that is followed here reaches the node: so with most nodes of a graph."""
        sources = node.all_input_nodes
        reached = self.results.may_reach(sources) or self.hidden.may_reach(sources)
        return reached or self.marks.may_reach(sources)

    def _carry_from(self, node: Node, sources: list[Node]) -> None:
        self.results.put(node, self.results.of_any(sources))
        self.hidden.put(node, self.hidden.of_any(sources))
        self._carry_marks(node)

    def _carry_marks(self, node: Node) -> None:
        self.marks.put(node, self.marks.of_any(node.all_input_nodes))

    def _consume_hidden(self, consumer: Node, sources: list[Node]) -> None:
        for reached in self.hidden.of_any(sources):
            if reached.scope is not None and is_within(module_path(consumer), reached.scope):
                reached.feeds = reached.feeds or consumer

    def _end(self, node: Node, reason: str, weight: Node | None = None) -> None:
        if node.users or node.op == "output":  # not a mere check such as `_assert_tensor_metadata`
            self._end_of(self.results.of_any(node.all_input_nodes), End(node, reason, weight))

    def _end_of(self, attentions: Iterable[Attention], end: End) -> None:
        for attention in attentions:
            attention.ends.append(end)

    def _visit_write(self, node: Node, buffer: Node, is_decided: bool) -> None:
        values = [source for source in self._activations(node) if source is not buffer]
        if values or self.dependence.is_activation(node):
            self.dependence.write(buffer)
        sources = [node] if is_decided else [node, *values]
        self.results.write(buffer, sources)
        self.hidden.write(buffer, sources)
        self.marks.write(buffer, [node])
