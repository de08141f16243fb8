"""What every role's search reads of one graph, made once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch.fx import GraphModule, Node

from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.dependence import Dependence
from oproj_pass.passes.graph.provenance import stored_inputs, value_of
from oproj_pass.passes.graph.stored import parameter_paths
from oproj_pass.passes.sites.attention import AttentionTrace
from oproj_pass.passes.sites.embedding_ids import are_of_the_batch


@dataclass(frozen=True)
class Scan:
    """A graph, the paths of its stored weights (None: any input may be one), and what attention reaches.

    ``marked``: inputs that are stored weights although the graph names none.
    """

    gm: GraphModule
    paths: Mapping[Node, str] | None
    trace: AttentionTrace
    marked: frozenset[Node] = frozenset()

    @classmethod
    def of(
        cls,
        gm: GraphModule,
        parameters: Mapping[str, str] | None,
        attention_ops: frozenset[Any],
        marked: Collection[Node] = (),
    ) -> "Scan":
        """Scan a graph; the arguments are ``find_roles``'s."""
        paths = parameter_paths(gm, parameters)
        return cls(gm, paths, AttentionTrace(gm, paths, attention_ops), frozenset(marked))

    @property
    def gemms(self) -> Mapping[Node, Gemm]:
        """Every GEMM with a stored weight, in graph order."""
        return self.trace.gemms

    @property
    def dependence(self) -> Dependence:
        """What depends on a token."""
        return self.trace.dependence

    @cached_property
    def of_mixers(self) -> frozenset[Node]:
        """The GEMMs that the result of an attention, or of another token mixer, reaches."""
        return frozenset(reached.gemm.node for reached in self.trace.reached)

    @cached_property
    def of_attention(self) -> frozenset[Node]:
        """Those among them that an attention's result reaches."""
        return frozenset(reached.gemm.node for reached in self.trace.reached if reached.is_attention)

    @cached_property
    def gates(self) -> frozenset[Any]:
        """The operations that gate one half of their input with the other."""
        return ops.GLU | ops.registered(*ops.GATED_PAIR)

    @cached_property
    def quantisations(self) -> frozenset[Any]:
        """The custom operators that quantise an activation."""
        return ops.registered(*ops.QUANTISE)

    @cached_property
    def vocabularies(self) -> frozenset[int]:
        """The numbers of rows of the stored tables that ids of the batch are looked up in."""
        found = set()
        for node in self.gm.graph.nodes:
            if ops.operation(node) in ops.LOOKUP:
                tables = [source for source in node.all_input_nodes if self.is_stored(source)]
                ids = [source for source in node.all_input_nodes if source not in tables]
                if all(are_of_the_batch(source, self.dependence) for source in ids):
                    found |= {value_of(table).shape[0] for table in tables}
        return frozenset(found)

    def is_stored(self, node: Node) -> bool:
        """Whether a node is a graph input that holds a weight."""
        return node.op == "placeholder" and (self.paths is None or node in self.paths)

    def is_constant(self, node: Node) -> bool:
        """Whether a node depends on no token; one that is made of marked inputs alone does not either."""
        if not self.dependence.is_activation(node):
            return True
        made_of = stored_inputs(node) if self.marked else []
        return bool(made_of) and self.marked.issuperset(made_of)
