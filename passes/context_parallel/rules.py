"""One rule an operation: what becomes of rows that are local, and what it needs of its other inputs.

Whatever has no rule is refused, with the operation's name.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from oproj_pass.passes.context_parallel import elementwise_rules as elementwise
from oproj_pass.passes.context_parallel import layout_rules as layout
from oproj_pass.passes.context_parallel import product_rules as products
from oproj_pass.passes.context_parallel.rows import Call, CannotSplit, Followed, at_place
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument

logger = logging.getLogger(__name__)

_CACHE_WRITES = ops.targets("index_copy", "index_put", "scatter", "slice_scatter", "copy")
_COPY_INTO = ops.targets("copy")
_GATHERS_FEATURES = ops.targets("gather", "take_along_dim")


def follow(call: Call) -> Followed:
    """What the call makes of its local rows; raises ``CannotSplit``."""
    rule = _rule_for(call.node)
    if rule is None:
        raise CannotSplit(f"`{call.node.name}` ({_name(call.node)}) may mix rows")
    try:
        found = rule(call)
    except CannotSplit:
        raise
    except Exception as error:  # arguments that the rule did not foresee
        logger.warning("rows cannot be followed through `%s`", call.node.format_node(), exc_info=True)
        raise CannotSplit(
            f"`{call.node.name}` has arguments that are not understood ({type(error).__name__})"
        ) from error
    if found.rows is None and not found.is_end:
        _require_gathered(call, found)
    if any(call.shapes.get(source, found.rows) != found.rows for source in call.node.all_input_nodes):
        raise CannotSplit(f"`{call.node.name}` takes its sizes from rows that lie elsewhere")
    return found


def _require_gathered(call: Call, found: Followed) -> None:
    """A result that is whole is made of whole values; fresh memory takes no more than type and device."""
    gathered = {at_place(call.node, place) for place in found.gathers}
    local = {node for node in call.node.all_input_nodes if call.rows(node)}
    if not (gathered >= local or ops.operation(call.node) in ops.FACTORY):
        raise CannotSplit(f"`{call.node.name}` picks the places that it writes by local rows")


def _rule_for(node: Node) -> Callable[[Call], Followed] | None:
    if node.target is getattr:
        return layout.transposed if node.args[1] in ("T", "mT", "H", "mH") else None
    operation = ops.operation(node)
    if operation in ops.ATTENTION or ops.operator_name(node) in ops.ENGINE_ATTENTION:
        return products.attention
    found = next((rule for family, rule in _RULES if operation in family), None)
    if found is None and torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return elementwise.elementwise
    return found


def _written(call: Call) -> Followed:
    """Local rows that are written into a value: a local one takes them, a whole one (a cache) needs all."""
    target: Any = call.node.args[0]
    if call.rows(target) is None:
        places = [("args", i) for i, value in enumerate(call.node.args) if call.rows(value)]
        named = [("kwargs", name) for name, value in call.node.kwargs.items() if call.rows(value)]
        return Followed(None, gathers=(*places, *named))
    if ops.operation(call.node) in _COPY_INTO:
        return elementwise.elementwise(call)
    raise CannotSplit(f"`{call.node.name}` writes into rows by number")


def _set_item(call: Call) -> Followed:
    target, value = call.node.args[0], call.node.args[2]
    if call.rows(target) is None:
        return Followed(None, gathers=(("args", 2),) if call.rows(value) else ())
    raise CannotSplit(f"`{call.node.name}` writes into rows by number")


def _gathered_features(call: Call) -> Followed:
    source, rows = call.first(alone=False)
    dim, index = argument(call.node, 1, "dim"), argument(call.node, 2, "index")
    if dim % len(call.shape) == rows.dim:
        raise CannotSplit(f"`{call.node.name}` picks rows by a tensor")
    found = elementwise.aligned_rows(call, [source, index], len(call.shape))
    return Followed(found, elementwise.aligned_splits(call, [index], found, call.shape))


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


_SETITEM = ops.targets("setitem")
_RULES: tuple[tuple[Any, Callable[[Call], Followed]], ...] = (
    (elementwise.ALONG, elementwise.along),
    (elementwise.NORMS, elementwise.normed),
    (_SETITEM, _set_item),
    (_CACHE_WRITES, _written),
    (ops.CAST | ops.COPY, elementwise.elementwise),
    (elementwise.ELEMENTWISE, elementwise.elementwise),
    (ops.FACTORY, elementwise.made_like),
    (ops.TRANSPOSE | ops.targets("movedim", "moveaxis"), layout.transposed),
    (layout.VIEWS, layout.viewed),
    (layout.EXPANDS, layout.expanded),
    (ops.targets("repeat", "repeat_interleave"), layout.repeated),
    (ops.targets("pad", "constant_pad_nd"), layout.padded),
    (layout.SELECTS, layout.selected),
    (layout.PARTS, layout.taken_apart),
    (layout.JOINS, layout.joined),
    (ops.targets("getitem"), layout.indexed),
    (ops.targets("index"), layout.picked),
    (_GATHERS_FEATURES, _gathered_features),
    (products.LINEAR, products.linear),
    (products.ADDED, products.added_product),
    (products.PRODUCTS, products.product),
    (products.EINSUM, products.einsum),
)
