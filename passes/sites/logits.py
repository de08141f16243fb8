"""Follows the results of GEMMs to where they leave the graph as logits.

Logits are looked at alone: scaled, capped, cast, cut to some rows or entries, sampled from. A result that
another GEMM or attention reads, that joins values of the model, or whose features are taken apart, is a
hidden state. A vocabulary is told from a router, a classifier or a pooler by its size (``vocabulary_gemms``).
"""

from collections.abc import Iterator

from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.labels import Labels
from oproj_pass.passes.sites.scan import Scan

_SAMPLING = ops.SOFTMAX | ops.targets(
    "argmax", "topk", "sort", "log_softmax", "_log_softmax", "multinomial", "gather", "logsumexp",
    "cross_entropy", "nll_loss",
)  # fmt: skip
_KEEPS_FEATURES = ops.ELEMENTWISE | ops.SELECT | _SAMPLING
_LAYOUT = ops.LAYOUT | ops.TRANSPOSE


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
        elif labels and _is_of_logits(node, results, computed):
            results.put(node, labels)
        elif node.users:  # not a mere check
            read |= labels
        if node in scan.gemms or ops.operation(node) in ops.LOOKUP or not computed.isdisjoint(sources):
            computed.add(node)
    return [scan.gemms[node] for node in scan.gemms if node in leaving - read - scan.of_mixers]


def _is_of_logits(node: Node, results: Labels[Node], computed: set[Node]) -> bool:
    """Whether the node does to logits what one does to logits."""
    operation = ops.operation(node)
    if any(source in computed and not results.at(source) for source in node.all_input_nodes):
        return False
    if operation in _LAYOUT:
        return _features(node) == _features(node.all_input_nodes[0])
    return operation in _KEEPS_FEATURES


def _features(node: Node) -> int | None:
    value = value_of(node)
    return value.shape[-1] if isinstance(value, Tensor) and value.dim() else None


def vocabulary_gemms(scan: Scan) -> list[Gemm]:
    """Those among them that have a result for each token of a vocabulary.

    They produce more features than they read, or as many as a table has rows that ids are looked up in:
    routers, classifiers and poolers do not.
    """
    sizes = set(_table_sizes(scan))
    return [
        gemm
        for gemm in gemms_that_leave(scan)
        if (features := _features(gemm.node) or 0) > gemm.k.extent or features in sizes
    ]


def _table_sizes(scan: Scan) -> Iterator[int]:
    for node in scan.gm.graph.nodes:
        if ops.operation(node) in ops.LOOKUP and node.op == "call_function":
            tables = [value_of(source) for source in node.all_input_nodes if scan.is_stored(source)]
            yield from (table.shape[0] for table in tables if table is not None and table.dim() == 2)
