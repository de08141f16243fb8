"""Predicts the time of a graph's products and collectives, node by node, for a diff of two graphs.

Everything else (norms, attention, copies) has no prediction: a pass that shards does not change it.
"""

import math
import re

from oproj_pass.advisor.collectives import Transfer, transfer_us
from oproj_pass.advisor.gemms import Product, product_us
from oproj_pass.advisor.profile import Collective, Profile
from oproj_pass.passes.diff.cost import Timer
from oproj_pass.passes.diff.graph_snapshot import GraphSnapshot, NodeSnapshot
from oproj_pass.passes.diff.labels import short_name
from oproj_pass.passes.diff.traffic import collective_name, payload_nbytes, value_nbytes

__all__ = ["node_timer"]

_COLLECTIVES: dict[str, Collective] = {
    "all_to_all_single": "all_to_all",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_gather_into_tensor": "all_gather",
}
_ROWS_AT = {"linear": 0, "mm": 0, "matmul": 0, "addmm": 1}  # which argument the rows of a product are
_KINDS = {1: "8bit", 2: "16bit"}


def node_timer(profile: Profile, framework: str = "vllm") -> Timer:
    """Microseconds of a node on the profile's machine; None for what is neither product nor collective."""

    def time(node: NodeSnapshot, graph: GraphSnapshot) -> float | None:
        if (transfer := _transfer(node, graph)) is not None:
            return transfer_us(profile, transfer)[0].value
        if (product := _product(node, graph)) is not None:
            return product_us(profile, product, framework)[0].value
        return None

    return time


def _transfer(node: NodeSnapshot, graph: GraphSnapshot) -> Transfer | None:
    kind = _COLLECTIVES.get(collective_name(node) or "")
    nbytes = payload_nbytes(node, graph)
    text = "".join(part for part in node.args if isinstance(part, str))
    if kind == "all_to_all":
        splits = re.search(r"\[([^\]]*)\]", text)
        size = len(splits[1].split(",")) if splits else 0
    else:
        sizes = re.findall(r"(?<![\w'])\d+(?![\w'])", text)
        size = int(sizes[-1]) if sizes else 0
    return Transfer(kind, size, nbytes) if kind and nbytes and size > 1 else None


def _product(node: NodeSnapshot, graph: GraphSnapshot) -> Product | None:
    place = _ROWS_AT.get(short_name(node)) if node.op.startswith("call") else None
    if place is None or len(node.inputs) < place + 2:
        return None
    rows, weight = (graph.by_name[name] for name in node.inputs[place : place + 2])
    if not all(value_nbytes(value) for value in (rows, weight, node)) or len(weight.shape or ()) != 2:
        return None
    *leading, k = map(int, rows.shape or ())
    n = int((node.shape or (1,))[-1])
    itemsizes = [_itemsize(value) for value in (weight, rows, node)]
    kind = _KINDS.get(max(itemsizes[:2]), "32bit")
    return Product(math.prod(leading), n, k, itemsizes[0], itemsizes[1], itemsizes[2], kind)


def _itemsize(node: NodeSnapshot) -> int:
    nbytes = value_nbytes(node) or 0
    return nbytes // math.prod(map(int, node.shape or (1,)))
