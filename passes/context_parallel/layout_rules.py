"""Rules for what moves the dimension of rows, merges it with others, or picks from a value."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.context_parallel.elementwise_rules import aligned_rows, split_of
from oproj_pass.passes.context_parallel.rows import (
    Call,
    CannotSplit,
    Followed,
    Place,
    Rows,
    Size,
    at_place,
    listed,
    shape_of,
)
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.graph.symbols import statically_known_true

STATES_NO_SIZE = ops.targets("flatten", "squeeze", "unsqueeze")
VIEWS = STATES_NO_SIZE | ops.targets("view", "reshape", "_unsafe_view", "unflatten")
EXPANDS = ops.targets("expand")
SELECTS = ops.targets("select", "slice", "narrow", "index_select")
PARTS = ops.targets("split", "split_with_sizes", "chunk", "unbind")
JOINS = ops.targets("cat", "concat", "concatenate", "stack")
_STACK = ops.targets("stack")
_INTERLEAVE, _UNBIND = ops.targets("repeat_interleave"), ops.targets("unbind")
_SELECT, _SLICE = ops.targets("select"), ops.targets("slice")
_UNFLATTEN = ops.targets("unflatten")


def transposed(call: Call) -> Followed:
    """By trying: where the dimension of rows goes."""
    source, rows = call.first()
    probe = torch.empty([dim + 2 for dim in range(len(shape_of(source) or ()))], device="meta")
    node = call.node
    if node.target is getattr:
        moved = getattr(probe, str(node.args[1]))
    elif node.op == "call_method":
        moved = getattr(probe, str(node.target))(*node.args[1:], **node.kwargs)
    else:
        moved = node.target(probe, *node.args[1:], **node.kwargs)  # type: ignore[operator]
    return Followed(Rows(list(moved.shape).index(rows.dim + 2), rows.outer))


def viewed(call: Call) -> Followed:
    """The dimension behind which lie as many elements, with batch entries merged into it or taken out."""
    source, rows = call.first()
    if any(isinstance(given, torch.dtype) for given in call.node.args[1:]):
        if rows.dim == len(call.shape) - 1:
            raise CannotSplit(f"`{call.node.name}` views the rows as another type")
        return Followed(rows)
    before, after = shape_of(source) or (), call.shape
    inner = math.prod(before[rows.dim + 1 :])
    outers = [1, rows.outer, *(rows.outer * math.prod(before[dim : rows.dim]) for dim in range(rows.dim))]
    for dim, size in enumerate(after):
        if not statically_known_true(math.prod(after[dim + 1 :]) == inner):
            continue
        outer = next((outer for outer in outers if call.is_total(size, outer)), None)
        if outer is not None:
            found = Rows(dim, outer)
            return Followed(found, sizes=tuple(_stated(call, found, dim)))
    raise CannotSplit(f"`{call.node.name}` views {list(before)} as {list(after)}, across the rows")


def expanded(call: Call) -> Followed:
    """Copies along other dimensions; new ones come in front."""
    source, rows = call.first()
    found = Rows(rows.dim + len(call.shape) - len(shape_of(source) or ()), rows.outer)
    return Followed(found, sizes=tuple(_stated(call, found, found.dim)))


def _stated(call: Call, rows: Rows, dim: int) -> Iterator[tuple[Place, Size]]:
    """The size that the call states for the dimension of rows, unless it leaves it open."""
    place: Place
    node, operation = call.node, ops.operation(call.node)
    if operation in STATES_NO_SIZE:
        return
    first = 1
    if operation in _UNFLATTEN:
        first, dim = 2, dim - argument(node, 1, "dim") % len(shape_of(node.args[0]) or ())
    if len(node.args) <= first:
        raise CannotSplit(f"`{node.name}` states its sizes by name")
    sizes = listed(node.args[first])
    if call.rows_of_shape(sizes):
        return
    if isinstance(sizes, Node) and isinstance(value_of(sizes), torch.Size):
        raise CannotSplit(f"`{node.name}` takes its sizes from `{sizes.name}`")
    if isinstance(sizes, list | tuple):
        place, within = ("args", first, dim), 0 <= dim < len(sizes)
    else:
        place, within = ("args", first + dim), 0 <= dim < len(node.args) - first
    if within and at_place(node, place) != -1:
        yield place, rows.outer


def repeated(call: Call) -> Followed:
    """``repeat`` with one repetition of the rows; ``repeat_interleave`` along another dimension."""
    source, rows = call.first()
    if ops.operation(call.node) in _INTERLEAVE:
        dim = argument(call.node, 2, "dim")
        if dim is None or dim % len(call.shape) == rows.dim:
            raise CannotSplit(f"`{call.node.name}` repeats along the rows")
        return Followed(rows)
    given = call.node.args[1:]
    times: Any = given[0] if given and isinstance(given[0], list | tuple) else given
    found = Rows(rows.dim + len(call.shape) - len(shape_of(source) or ()), rows.outer)
    if times[found.dim] != 1:
        raise CannotSplit(f"`{call.node.name}` repeats the rows")
    return Followed(found)


def padded(call: Call) -> Followed:
    """Padding of other dimensions."""
    source, rows = call.first()
    amounts = argument(call.node, 1, "pad")
    behind = 2 * (len(shape_of(source) or ()) - 1 - rows.dim)
    if any(amount != 0 for amount in amounts[behind : behind + 2]):
        raise CannotSplit(f"`{call.node.name}` pads the rows")
    return Followed(rows)


def selected(call: Call) -> Followed:
    """A part of another dimension; a part of the rows needs them whole."""
    source, rows = call.first()
    rank, operation = len(shape_of(source) or ()), ops.operation(call.node)
    dim = argument(call.node, 1, "dim", 0) % rank
    if dim != rows.dim:
        drops = operation in _SELECT and dim < rows.dim
        return Followed(Rows(rows.dim - drops, rows.outer))
    if operation in _SLICE and call.is_total(call.shape[dim], rows.outer):
        return Followed(rows)
    return Followed(None, is_end=True)


def taken_apart(call: Call) -> Followed:
    """The parts of another dimension; each has its rows where the value had them."""
    source, rows = call.first()
    position = 1 if ops.operation(call.node) in _UNBIND else 2
    dim = argument(call.node, position, "dim", 0) % len(shape_of(source) or ())
    if dim == rows.dim:
        raise CannotSplit(f"`{call.node.name}` takes the rows apart")
    drops = position == 1 and dim < rows.dim
    return Followed(Rows(rows.dim - drops, rows.outer))


def joined(call: Call) -> Followed:
    """Parts of another dimension; joined along the rows (with a cache), they are needed whole."""
    is_by_name = not call.node.args
    tensors: Any = call.node.kwargs["tensors"] if is_by_name else call.node.args[0]
    stacks = ops.operation(call.node) in _STACK
    filled = [node for node in tensors if shape_of(node) != (0,)]  # torch skips them: an empty cache is one
    dim = argument(call.node, 1, "dim", 0) % len(call.shape)
    rows = aligned_rows(call, filled, len(call.shape) - stacks)
    if dim == rows.dim and not stacks:
        start: Place = ("kwargs", "tensors") if is_by_name else ("args", 0)
        return Followed(
            None, gathers=tuple((*start, place) for place, node in enumerate(tensors) if call.rows(node))
        )
    whole = [node for node in filled if call.rows(node) is None]
    splits = tuple(split_of(call, node, rows.dim, rows) for node in whole)
    return Followed(Rows(rows.dim + (stacks and dim <= rows.dim), rows.outer), splits)


def indexed(call: Call) -> Followed:
    """``x[...]`` with numbers, slices, new dimensions; an entry of what has several results."""
    source, rows = call.first()
    if not isinstance(value_of(source), Tensor):
        return Followed(rows)
    index = call.node.args[1]
    return by_index(call, shape_of(source) or (), rows, index if isinstance(index, tuple) else (index,))


def picked(call: Call) -> Followed:
    """``aten.index``."""
    source, rows = call.first()
    items: Any = argument(call.node, 1, "indices")
    return by_index(
        call, shape_of(source) or (), rows, tuple(slice(None) if item is None else item for item in items)
    )


def by_index(call: Call, shape: Sequence[Size], rows: Rows, items: tuple[Any, ...]) -> Followed:
    """Walk an index: which of its entries falls on the rows, and where they come out."""
    taken = sum(item is not None and item is not Ellipsis for item in items)
    complete = [
        entry
        for item in items
        for entry in ([slice(None)] * (len(shape) - taken) if item is Ellipsis else [item])
    ]
    complete += [slice(None)] * (len(shape) - taken if Ellipsis not in items else 0)
    before = after = 0
    for item in complete:
        if item is None:
            after += 1
            continue
        if before == rows.dim:
            return _at_rows(call, item, Rows(after, rows.outer))
        if isinstance(item, Node) and isinstance(value_of(item), Tensor):
            raise CannotSplit(f"`{call.node.name}` picks by a tensor beside the rows")
        before, after = before + 1, after + isinstance(item, slice)
    raise CannotSplit(f"`{call.node.name}` has an index that is not understood")


def _at_rows(call: Call, item: Any, rows: Rows) -> Followed:
    behind_is_plain = not any(
        isinstance(source, Node) and isinstance(value_of(source), Tensor)
        for source in call.node.all_input_nodes[1:]
    )
    keeps_all = isinstance(item, slice) and (
        item == slice(None)
        or (rows.dim < len(call.shape) and call.is_total(call.shape[rows.dim], rows.outer))
    )
    if keeps_all and behind_is_plain:
        return Followed(rows)
    return Followed(None, is_end=True)
