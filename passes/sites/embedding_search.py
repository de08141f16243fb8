"""Decides which lookups in stored tables can be shared, and gives every other one its reason.

Ids that come with the batch are looked up for each of its rows, and every rank has its own. What the graph
counts itself are positions: all ranks read the same few rows of a small table, which an exchange would only
slow down.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.gemm.axes import TensorAxis
from oproj_pass.passes.gemm.operand import on_matrix
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.provenance import module_path, rank_of, real_value, value_of
from oproj_pass.passes.sites.embedding import Lookup
from oproj_pass.passes.sites.embedding_ids import are_of_the_batch
from oproj_pass.passes.sites.globs import Globs
from oproj_pass.passes.sites.refusals import tensor_refusal
from oproj_pass.passes.sites.scan import Scan
from oproj_pass.passes.sites.unforeseen import unforeseen

_SELECT_ROWS = ops.targets("index_select")
_BY_INDEX = ops.targets("getitem", "index")
_IDS_FIRST = (torch.nn.functional.embedding, torch.nn.functional.embedding_bag)


def find_lookups(scan: Scan, globs: Globs) -> tuple[list[Lookup], list[NearMiss]]:
    """The lookups of a graph, and near misses with their reasons, each in graph order."""
    judged = [_judge(lookup, scan, globs) for lookup in _lookups(scan)]
    sites = [found for found in judged if isinstance(found, Lookup)]
    return sites, [found for found in judged if isinstance(found, NearMiss)]


def _lookups(scan: Scan) -> Iterator[Lookup]:
    for node in scan.gm.graph.nodes:
        ids, table = _ids_and_table(node)
        if not isinstance(ids, Node) or not isinstance(table, Node) or rank_of(table) != 2:
            continue
        found = on_matrix(table, 0)
        if found is not None and _is_trained(found[0].node, node, scan):
            weight, chain = found
            names = scan.paths or {}
            weight = TensorAxis(weight.node, weight.dim, path=names.get(weight.node, weight.node.name))
            yield Lookup(module_path(node), names, node, ids, weight, chain, _padding_idx(node))


def _ids_and_table(node: Node) -> tuple[Any, Any]:
    """``F.embedding(input, weight)``, ``torch.embedding(weight, indices)`` as ATen's, and by an index."""
    operation = ops.operation(node)
    if operation in ops.LOOKUP | ops.LOOKUP_OF_BAGS:
        if node.target in _IDS_FIRST:
            return argument(node, 0, "input"), argument(node, 1, "weight")
        return argument(node, 1, "indices"), argument(node, 0, "weight")
    if operation in _SELECT_ROWS:
        table = argument(node, 0, "input") if argument(node, 1, "dim") == 0 else None
        return argument(node, 2, "index"), table
    if operation in _BY_INDEX:
        indices = argument(node, 1, "indices")
        first = indices[0] if isinstance(indices, list | tuple) and indices else indices
        return first, argument(node, 0, "self")
    return None, None


def _is_trained(table: Node, lookup: Node, scan: Scan) -> bool:
    """Whether the table is a parameter: a buffer holds what was computed, as rotary embeddings are.

    Where the graph keeps no record, an index picks from any input.
    """
    if scan.paths is None:
        return table.op == "placeholder" and ops.operation(lookup) in ops.LOOKUP
    real = real_value(table)
    return table in scan.paths and (real is None or isinstance(real, nn.Parameter))


def _padding_idx(node: Node) -> int | None:
    found = argument(node, 2, "padding_idx") if ops.operation(node) in ops.LOOKUP else None
    return found if found is not None and found >= 0 else None


def _judge(lookup: Lookup, scan: Scan, globs: Globs) -> Lookup | NearMiss:
    try:
        reason = globs.refusal(lookup.path) or _refusal(lookup, scan)
    except Exception as error:
        reason = unforeseen(lookup.path, lookup.node, error)
    return lookup if reason is None else NearMiss(lookup.path, reason, lookup.nbytes, role="embedding")


def _refusal(lookup: Lookup, scan: Scan) -> str | None:
    node, table = lookup.node, value_of(lookup.weight.node)
    if not are_of_the_batch(lookup.ids, scan.dependence):
        return "is looked up by ids that the graph makes itself, as a table of positions is"
    if ops.operation(node) in ops.LOOKUP_OF_BAGS:
        return "sums the rows of its table that each bag of ids picks"
    if ops.operation(node) in _BY_INDEX:
        return f"is looked up by an index (`{node.name}`), which may count from its end: use `F.embedding`"
    if lookup.weight.dim != 0:
        return "has a table that is stored with its entries as columns"
    if node.target is torch.nn.functional.embedding:
        if argument(node, 3, "max_norm") is not None:
            return "rescales rows of its table in place as they are looked up (max_norm)"
        if argument(node, 6, "sparse", False):
            return "asks for sparse gradients, so its table is being trained"
    if not table.is_floating_point():
        return f"has a table of {table.dtype}, a quantisation scheme that is not supported"
    return tensor_refusal(lookup.weight.node)
