"""Rules for products and attention: queries stay local; keys and values are needed whole."""

from typing import Any

import torch
from torch.fx import Node

from oproj_pass.passes.context_parallel.elementwise_rules import aligned_splits, split_of
from oproj_pass.passes.context_parallel.rows import (
    Call,
    CannotSplit,
    Followed,
    Place,
    Rows,
    argument_place,
    at_place,
    shape_of,
)
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.symbols import statically_known_true

LINEAR = ops.targets("linear")
ADDED = ops.targets("addmm", "baddbmm")
PRODUCTS = ops.targets("matmul", "imatmul", "mm", "bmm")
EINSUM = ops.EINSUM

# Attention that takes a mask, with the positions of its mask (if it has one) and of ``is_causal``.
MASKED_ATTENTION: dict[Any, tuple[int | None, int]] = {
    **dict.fromkeys(ops.targets("scaled_dot_product_attention"), (3, 5)),
    **dict.fromkeys(ops.targets("_scaled_dot_product_flash_attention_for_cpu"), (None, 4)),
}


def linear(call: Call) -> Followed:
    """A product with a weight, row by row."""
    source, rows = call.first()
    others = [node for node in call.node.all_input_nodes if node is not source]
    if rows.dim == len(shape_of(source) or ()) - 1 or any(map(call.rows, others)):
        raise CannotSplit(f"`{call.node.name}` multiplies along the rows")
    return Followed(rows)


def added_product(call: Call) -> Followed:
    """``addmm`` and its like: what is added has rows where the product has them, or none."""
    added: Any = call.node.args[0]
    product = _product(call, ("args", 1), ("args", 2))
    rows = product.rows
    assert rows is not None
    own = call.rows(added)
    if own is not None and own.dim - len(shape_of(added) or ()) != rows.dim - len(call.shape):
        raise CannotSplit(f"`{call.node.name}` adds rows along another dimension")
    splits = (*product.splits, *aligned_splits(call, [added], rows, call.shape))
    return Followed(rows, splits, product.gathers)


def product(call: Call) -> Followed:
    """A product of two values, one or both of them local."""
    second = argument_place(call.node, 1, "other") or argument_place(call.node, 1, "mat2")
    if second is None:
        raise CannotSplit(f"`{call.node.name}` is called in a way that is not understood")
    return _product(call, ("args", 0), second)


def _product(call: Call, first: Place, second: Place) -> Followed:
    a, b = at_place(call.node, first), at_place(call.node, second)
    rank, shapes = len(call.shape), (shape_of(a) or (), shape_of(b) or ())
    if min(map(len, shapes)) < 2:
        raise CannotSplit(f"`{call.node.name}` multiplies by a vector")
    of_a, of_b = call.rows(a), call.rows(b)
    if of_a is None:
        assert of_b is not None
        if of_b.dim == len(shapes[1]) - 2:
            raise CannotSplit(f"`{call.node.name}` sums over the rows")
        rows = Rows(of_b.dim - len(shapes[1]) + rank, of_b.outer)
        return Followed(rows, _batch_splits(call, a, rows))
    if of_a.dim == len(shapes[0]) - 1:
        raise CannotSplit(f"`{call.node.name}` sums over the rows")
    rows = Rows(of_a.dim - len(shapes[0]) + rank, of_a.outer)
    if of_b is None:
        return Followed(rows, _batch_splits(call, b, rows))
    if of_b.dim >= len(shapes[1]) - 2:
        return Followed(rows, gathers=(second,))
    if of_b.dim - len(shapes[1]) + rank != rows.dim:
        raise CannotSplit(f"`{call.node.name}` joins rows along two dimensions")
    return Followed(rows)


def _batch_splits(call: Call, whole: Node, rows: Rows) -> tuple[tuple[Node, int], ...]:
    """A whole factor with rows among its batch dimensions."""
    if rows.dim >= len(call.shape) - 2:
        return ()
    return aligned_splits(call, [whole], rows, call.shape)


def einsum(call: Call) -> Followed:
    """By letters: the first operand keeps its rows, one with rows under another letter is needed whole."""
    equation, *operands = call.node.args
    is_listed = isinstance(operands[0], list | tuple)
    flat: Any = operands[0] if is_listed else operands
    terms, arrow, output = str(equation).replace(" ", "").partition("->")
    if not arrow or "." in terms:
        raise CannotSplit(f"`{call.node.name}` has an equation that names not every dimension")
    letters = terms.split(",")
    places: list[Place] = [("args", 1, i) if is_listed else ("args", 1 + i) for i in range(len(flat))]
    kept: str | None = None
    gathers, outer = [], None
    for node, term, place in zip(flat, letters, places, strict=True):
        if (rows := call.rows(node)) is None:
            continue
        letter = term[rows.dim]
        if kept is None and letter in output:
            kept, outer = letter, rows.outer
        elif letter != kept:
            gathers.append(place)
    if kept is None or outer is None:
        raise CannotSplit(f"`{call.node.name}` sums over the rows")
    rows = Rows(output.index(kept), outer)
    splits = tuple(
        split_of(call, node, term.index(kept), rows)
        for node, term in zip(flat, letters, strict=True)
        if call.rows(node) is None
        and kept in term
        and not statically_known_true(_size(node, term, kept) == 1)
    )
    return Followed(rows, splits, tuple(gathers))


def _size(node: Node, term: str, letter: str) -> Any:
    return (shape_of(node) or ())[term.index(letter)]


def attention(call: Call) -> Followed:
    """Queries keep their rows; keys and values are needed whole; a mask's rows are the queries'."""
    node, operation = call.node, ops.operation(call.node)
    if operation not in MASKED_ATTENTION:
        raise CannotSplit(f"`{node.name}` is an attention that takes no mask by position")
    query: Any
    query, *others = (argument(node, i, name) for i, name in enumerate(("query", "key", "value")))
    rows, rank = call.rows(query), len(shape_of(query) or ())
    if rows is None or rows.dim != rank - 2:
        raise CannotSplit(f"`{node.name}` has queries whose rows are not its last but one dimension")
    places = [argument_place(node, i, name) for i, name in ((1, "key"), (2, "value"))]
    for other in filter(call.rows, others):
        if call.rows(other).dim != len(shape_of(other) or ()) - 2:  # type: ignore[union-attr]
            raise CannotSplit(f"`{node.name}` has keys whose rows are not their last but one dimension")
    gathers = tuple(place for place, other in zip(places, others, strict=True) if place and call.rows(other))
    of_mask, of_causal = MASKED_ATTENTION[operation]
    mask: Any = node.kwargs.get("attn_mask") if of_mask is None else argument(node, of_mask, "attn_mask")
    is_causal = bool(argument(node, of_causal, "is_causal", False))
    if is_causal and not call.is_total((shape_of(query) or ())[rows.dim]):
        raise CannotSplit(f"`{node.name}` masks by index, with other rows beside those of the sequence")
    if isinstance(mask, Node) and call.rows(mask) is not None:
        raise CannotSplit(f"`{node.name}` has a mask that is made of local rows")
    splits = () if mask is None else aligned_splits(call, [mask], rows, torch.Size([*call.shape[:-1], 1]))
    return Followed(rows, splits, gathers, is_causal=is_causal)
