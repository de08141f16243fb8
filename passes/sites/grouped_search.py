"""Finds the groups' matrices in front of an attention output projection, or says why they stay whole.

A projection that a product of groups leads to is one site with it, where a rank can compute its groups alone:

1. Between the product and its rows [.., G x r] there is layout alone, group by group, rows in their order.
2. Nothing else reads any of it, nor the groups' matrices.
3. What lies between those rows and the GEMM is the same on a part of the features: ``inner``.

Where it cannot, the GEMM stays a site by itself, and the groups' matrices are a near miss.
"""

from collections.abc import Collection, Iterator, Sequence

from torch.fx import Node

from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.gemm.following_step import CannotFollow
from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.gemm.grouped import GroupedProduct, match_grouped
from oproj_pass.passes.graph.effects import mutated_inputs, storage_owner
from oproj_pass.passes.graph.provenance import module_path, parent_path, stored_inputs, value_of
from oproj_pass.passes.sites.attention_output import find_attention_outputs
from oproj_pass.passes.sites.globs import Globs
from oproj_pass.passes.sites.grouped import Grouped
from oproj_pass.passes.sites.grouped_layout import joined_rows
from oproj_pass.passes.sites.inner import read_inner
from oproj_pass.passes.sites.inner_state import NotElementwise
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.sites.readers import stray_reader
from oproj_pass.passes.sites.refusals import tensor_refusal
from oproj_pass.passes.sites.scan import Scan
from oproj_pass.passes.sites.unforeseen import unforeseen


def find_output_projections(scan: Scan, globs: Globs) -> tuple[list[Projection | Grouped], list[NearMiss]]:
    """The attention output projections of a graph, those in two steps as one site, and the near misses."""
    found, misses = find_attention_outputs(scan, globs)
    sites = dict[Node, Projection | Grouped]((site.node, site) for site in found)
    products = list(_products(scan))
    for product, reached in products:
        down = next((site for site in found if site.gemm.input in reached), None)
        if down is None:
            continue
        judged = _judge(product, down, reached, [other for other, _ in products], scan)
        if isinstance(judged, Grouped):
            sites[down.node] = judged
        else:
            misses.append(judged)
    return [*sites.values()], misses


def _products(scan: Scan) -> Iterator[tuple[GroupedProduct, dict[Node, None]]]:
    """The products of groups that an attention reaches, each with what is made of it up to the next GEMM."""
    for node in scan.trace.products:
        product = match_grouped(node, scan.is_constant)
        if product is not None and scan.trace.results.at(product.input):
            yield product, _made_of(product, scan)


def _made_of(product: GroupedProduct, scan: Scan) -> dict[Node, None]:
    """The product and the nodes that depend on it, in graph order, up to the first GEMM that does."""
    reached = {product.node: None}
    node = product.node.next
    while node.op != "output" and not (node in scan.gemms and scan.gemms[node].input in reached):
        if not reached.keys().isdisjoint(node.all_input_nodes):
            reached[node] = None
        node = node.next
    return reached


def _judge(
    product: GroupedProduct,
    down: Projection,
    reached: Collection[Node],
    products: Sequence[GroupedProduct],
    scan: Scan,
) -> Grouped | NearMiss:
    path = _path_of(product, scan)
    try:
        reason = _refusal(product, down.gemm, products, scan)
        if reason is None:
            joined = joined_rows(product, reached)
            inner = read_inner([joined], down.gemm, [node for node in reached if node is not joined], scan)
            return Grouped(
                down.path, down.names, product, joined, down.gemm, inner.nodes, inner.literals, inner.rows
            )
    except NotElementwise as refusal:
        reason = str(refusal)
    except CannotFollow as refusal:
        reason = f"has a weight that {refusal}"
    except Exception as error:
        reason = unforeseen(path, product.node, error)
    return NearMiss(path, f"projects groups for `{down.path}`, and {reason}", _nbytes(product))


def _refusal(
    product: GroupedProduct, down: Gemm, products: Sequence[GroupedProduct], scan: Scan
) -> str | None:
    along = product.along_output()
    for tensor in along.tensors:
        if not scan.is_stored(tensor.node):
            return f"meets `{tensor.node.name}`, no parameter or buffer of the model"
        if (refusal := tensor_refusal(tensor.node)) is not None:
            return refusal
        readers = {*(other.node for other in products), *along.constants}
        if (reader := stray_reader(tensor.node, readers, along.constants)) is not None:
            return f"has a weight that is also read by {reader}"
    for node in along.constants:
        if any(storage_owner(buffer).op in ("placeholder", "get_attr") for buffer in mutated_inputs(node)):
            return f"has a weight that `{node.name}` writes in place"
    return _overwritten(product, down)


def _overwritten(product: GroupedProduct, down: Gemm) -> str | None:
    """The rows are exchanged where the GEMM stands, so they must be the same there as at the product."""
    node, owner = product.node.next, storage_owner(product.input)
    while node is not down.node:
        if any(storage_owner(buffer) is owner for buffer in mutated_inputs(node)):
            return f"has an input that `{node.name}` writes in place before the groups are joined"
        node = node.next
    return None


def _path_of(product: GroupedProduct, scan: Scan) -> str:
    """The module that holds the matrices, that of the product where their names are not known."""
    names = [(scan.paths or {}).get(node, "") for node in stored_inputs(product.operand)[:1]]
    return parent_path(*names) or module_path(product.node) or product.node.name


def _nbytes(product: GroupedProduct) -> int:
    value = value_of(product.operand)
    return int(value.numel() * value.element_size())
