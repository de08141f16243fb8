"""Decides which lookups of ids in a stored table can be shared: a part of the vocabulary on each rank."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.gemm.axes import TensorAxis
from oproj_pass.passes.gemm.operand import on_matrix
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.provenance import module_path, value_of
from oproj_pass.passes.sites.globs import Globs
from oproj_pass.passes.sites.refusals import tensor_refusal
from oproj_pass.passes.sites.scan import Scan

logger = logging.getLogger(__name__)

_IDS_FIRST = (torch.nn.functional.embedding,)


@dataclass(frozen=True)
class Lookup:
    """``y [.., H] = table [V, H][ids [..]]``.

    ``weight``: where the vocabulary lies on the stored table; ``constants``: the nodes between it and the
    lookup, such as a cast. ``padding_idx`` names a row that is never trained, and changes no lookup.
    ``names``: the paths in the model of the stored tensors.
    """

    path: str
    names: Mapping[Node, str]
    node: Node
    ids: Node
    weight: TensorAxis
    constants: tuple[Node, ...] = ()
    padding_idx: int | None = None
    role: str = "embedding"

    @property
    def input(self) -> Node:
        """The ids."""
        return self.ids

    @property
    def vocabulary(self) -> int:
        """V."""
        return int(value_of(self.weight.node).shape[self.weight.dim])

    @property
    def features(self) -> int:
        """H."""
        return int(value_of(self.node).shape[-1])

    @property
    def stored(self) -> tuple[TensorAxis, ...]:
        """The table."""
        return (self.weight,)

    @property
    def readers(self) -> frozenset[Node]:
        """The lookup."""
        return frozenset((self.node,))

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self.weight.nbytes


def find_lookups(scan: Scan, globs: Globs) -> tuple[list[Lookup], list[NearMiss]]:
    """The lookups of a graph, and near misses with their reasons."""
    judged = [_judge(lookup, scan, globs) for lookup in _lookups(scan)]
    sites = [found for found in judged if isinstance(found, Lookup)]
    return sites, [found for found in judged if isinstance(found, NearMiss)]


def _lookups(scan: Scan) -> Iterator[Lookup]:
    for node in scan.gm.graph.nodes:
        if ops.operation(node) not in ops.LOOKUP or node.op not in ("call_function", "call_method"):
            continue
        ids, table = _ids_and_table(node)
        found = on_matrix(table, 0)
        if found is not None and scan.is_stored(found[0].node):
            weight, chain = found
            names = scan.paths or {}
            weight = TensorAxis(weight.node, weight.dim, path=names.get(weight.node, weight.node.name))
            padding_idx = argument(node, 2, "padding_idx")
            yield Lookup(module_path(node), names, node, ids, weight, chain, padding_idx)


def _ids_and_table(node: Node) -> tuple[Any, Any]:
    """``F.embedding(input, weight)``, but ``torch.embedding(weight, indices)`` and ATen's."""
    if node.target in _IDS_FIRST:
        return argument(node, 0, "input"), argument(node, 1, "weight")
    return argument(node, 1, "indices"), argument(node, 0, "weight")


def _judge(lookup: Lookup, scan: Scan, globs: Globs) -> Lookup | NearMiss:
    try:
        reason = globs.refusal(lookup.path) or _refusal(lookup, scan)
    except Exception as error:  # what no rule foresaw costs the site, never the compile
        logger.warning(
            "%s: the search cannot judge `%s`", lookup.path, lookup.node.format_node(), exc_info=True
        )
        reason = f"has a call that the search cannot read ({type(error).__name__}: {error})"
    return lookup if reason is None else NearMiss(lookup.path, reason, lookup.nbytes, role="embedding")


def _refusal(lookup: Lookup, scan: Scan) -> str | None:
    if not scan.dependence.is_activation(lookup.ids):
        return "is looked up by ids that the graph makes itself, as a table of positions is"
    return tensor_refusal(lookup.weight.node)
