"""Follows the results of GEMMs to where they leave the graph as logits.

Logits are looked at alone: scaled, capped, cast, cut to some rows or entries, sampled from. A result that
another GEMM or attention reads, that joins values of the model, or whose features are taken apart, is a
hidden state. A vocabulary is told from a router, a classifier or a pooler by its size (``vocabulary_gemms``).
"""

from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.labels import Labels
from oproj_pass.passes.sites.scan import Scan

_OF_LOGITS = ops.ELEMENTWISE | ops.SELECT | ops.SOFTMAX | ops.SAMPLING
_LAYOUT = ops.LAYOUT | ops.TRANSPOSE
_PRODUCT = ops.targets("mul", "imul")


def gemms_that_leave(scan: Scan) -> list[Gemm]:
    """The GEMMs whose results leave the graph and are read by nothing else of the model, in graph order."""
    results: Labels[Node] = Labels(scan.dependence.base)
    read: set[Node] = set()
    leaving: set[Node] = set()
    computed: set[Node] = set()
    for node in scan.gm.graph.nodes:
        sources = node.all_input_nodes
        labels = results.of_any(sources)
        if node in scan.gemms:
            read |= labels
            results.put(node, [node])
        elif node.op == "output":
            leaving |= labels
        elif labels and _is_of_logits(node, scan, results, computed):
            results.put(node, labels)
        elif node.users:  # not a mere check
            read |= labels
        if node in scan.gemms or ops.operation(node) in ops.LOOKUP or not computed.isdisjoint(sources):
            computed.add(node)
    return [scan.gemms[node] for node in scan.gemms if node in leaving - read - scan.of_attention]


def _is_of_logits(node: Node, scan: Scan, results: Labels[Node], computed: set[Node]) -> bool:
    """Whether the node does to logits what one does to logits.

    A factor may be an input of the graph, such as a temperature, or a scale of each row, of quantised
    ones; a term that is none of them, and the product of two, are a model's own values.
    """
    operation, sources = ops.operation(node), node.all_input_nodes
    others = [source for source in sources if not results.at(source)]
    is_sum_with_an_input = operation in ops.COMBINE and any(map(scan.dependence.is_activation, others))
    is_product_of_two = operation in _PRODUCT and len({results.at(x) for x in sources} - {frozenset()}) > 1
    computed_others = [source for source in others if source in computed and _features(source) != 1]
    if is_sum_with_an_input or is_product_of_two or computed_others:
        return False
    if operation in _LAYOUT:
        return _features(node) == _features(node.all_input_nodes[0])
    return operation in _OF_LOGITS


def _features(node: Node) -> int | None:
    value = value_of(node)
    return value.shape[-1] if isinstance(value, Tensor) and value.dim() else None


def vocabulary_gemms(scan: Scan) -> list[Gemm]:
    """Those among them that have a result for each token of a vocabulary."""
    return [gemm for gemm in gemms_that_leave(scan) if is_of_vocabulary(gemm, scan)]


def is_of_vocabulary(gemm: Gemm, scan: Scan) -> bool:
    """Whether a GEMM makes more features than it reads, or as many as a table of the graph has entries.

    Routers, classifiers and poolers do not.
    """
    features = _features(gemm.node) or 0
    return features > gemm.k.extent or features in scan.vocabularies
