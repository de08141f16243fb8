"""Rules for what lays rows out anew or takes a fused gate and up apart: views, slices, ``split``."""

from typing import Any

from torch.fx import Node

from oproj_pass.passes.gemm.literals import EMPTY, NEW, UNFLATTEN, VIEW, Literal
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.sites.inner_state import (
    Held,
    Holds,
    NotElementwise,
    Reading,
    is_last,
    parted,
    shape_of,
)

_NARROW = ops.targets("narrow")
_EXPAND = ops.targets("expand")
_ONE_MORE_OR_LESS = ops.targets("squeeze", "unsqueeze")
_ALL = slice(None)


def viewed(reading: Reading, node: Node) -> Holds:
    """Rows may be laid out anew, and fused parts or groups of a scale taken apart or joined."""
    source: Any = node.args[0]
    found = _seen_as(reading, reading.of(source), shape_of(source), shape_of(node))
    if found is None or _moves_rows(node, source):
        raise parted(node)
    note_sizes(reading, node, found)
    return found


def _seen_as(reading: Reading, held: Held, before: Any, after: Any) -> Held | None:
    parts, size, flat = held.parts, reading.size, Held(held.parts)
    if parts == 0:
        counts = (*after[-2:], 1)[:2] if after[-1] == 1 else (after[-1], 1)
        return held if held.group is None or counts == (size // held.group, 1) else None
    if before[-1] == after[-1] and (held == flat or before[-2:] == after[-2:]):
        return held
    if held != flat:
        return flat if after[-1] == parts * size else None
    if parts == 1 and after[-1] > 1 and reading.down.k.unit % after[-1] == 0:
        return Held(1, group=after[-1]) if after[-2] * after[-1] == size else None
    if parts > 1 and after[-2:] == (parts, size):
        return Held(parts, stacked=True)
    return Held(parts, paired=True) if parts > 1 and after[-2:] == (size, parts) else None


def _moves_rows(node: Node, source: Node) -> bool:
    """Whether rows would lie on another dimension than the first, or be repeated."""
    before, after = shape_of(source), shape_of(node)
    if ops.operation(node) in _EXPAND:
        return bool(after != before)
    if ops.operation(node) in _ONE_MORE_OR_LESS:
        given, rank = argument(node, 1, "dim", 0), max(len(before), len(after))
        return any(dim % rank == 0 for dim in (given if isinstance(given, list | tuple) else (given,)))
    return len(after) < 2


def note_sizes(reading: Reading, node: Node, held: Held) -> None:
    """Note the sizes that a call states, of what I lies on and of the first dimension."""
    operation, shape = ops.operation(node), shape_of(node)
    is_before_last = held.paired or (held.group is not None and shape[-1] in (1, held.group))
    if operation in UNFLATTEN | VIEW | EMPTY | NEW and (held.parts or held.group):
        reading.literals.append(Literal(node, len(shape) - 1 - is_before_last))
    if operation in VIEW | EMPTY | NEW:
        reading.rows.append(Literal(node, 0))


def chunked(reading: Reading, node: Node) -> Holds:
    """``chunk`` into equal parts."""
    source: Any = node.args[0]
    held, count = reading.of(source), argument(node, 1, "chunks")
    if not is_last(source, argument(node, 2, "dim", 0)) or held != Held(held.parts) or held.parts % count:
        raise parted(node)
    return in_parts(reading, held, [held.parts // count] * count)


def split(reading: Reading, node: Node) -> Holds:
    """``split`` by one size or several."""
    source: Any = node.args[0]
    held, total = reading.of(source), shape_of(source)[-1]
    sizes = argument(node, 1, next((name for name in node.kwargs if name.startswith("split")), ""))
    listed = sizes if isinstance(sizes, list | tuple) else [sizes] * (total // sizes)
    is_uneven = sum(listed) != total or any(size % reading.size for size in listed)
    if not is_last(source, argument(node, 2, "dim", 0)) or held != Held(held.parts) or is_uneven:
        raise parted(node)
    reading.literals.append(Literal(node, len(shape_of(source)) - 1))
    return in_parts(reading, held, [size // reading.size for size in listed])


def in_parts(reading: Reading, held: Held, parts: list[int]) -> tuple[Held, ...]:
    """The parts that fused features are taken apart into."""
    reading.segments.add(held.parts)
    return tuple(map(Held, parts))


def sliced(reading: Reading, node: Node) -> Holds:
    """``slice(x, dim, start, end, step)`` and ``narrow(x, dim, start, length)``."""
    source: Any = node.args[0]
    start, end = argument(node, 2, "start", 0) or 0, argument(node, 3, "end")
    if ops.operation(node) in _NARROW:
        end = start + argument(node, 3, "length")
    if is_last(source, argument(node, 1, "dim", 0)):
        return _cut(reading, node, source, slice(start, end, argument(node, 4, "step", 1)))
    if shape_of(source) != shape_of(node):
        raise NotElementwise(f"takes some rows of its intermediate in `{node.name}`")
    return reading.of(source)


def _cut(reading: Reading, node: Node, source: Node, bounds: slice) -> Holds:
    """A part of the last dimension: whole multiples of I, or one feature of each pair."""
    held, total = reading.of(source), shape_of(source)[-1]
    if held != Held(held.parts):
        raise parted(node)
    start, stop, step = bounds.start or 0, bounds.stop, bounds.step or 1
    stop = total if stop is None else min(stop, total)
    if step == held.parts > 1 and 0 <= start < step and stop == total:
        return _of_pairs(reading, held)
    if step != 1 or not 0 <= start < stop or start % reading.size or stop % reading.size:
        raise parted(node)
    reading.literals.append(Literal(node, len(shape_of(node)) - 1))
    return in_parts(reading, held, [(stop - start) // reading.size])[0]


def _of_pairs(reading: Reading, held: Held) -> Held:
    """One feature of each pair: consecutive parts of I are consecutive pairs."""
    reading.interleaved.add(held.parts)
    return Held(1)


def item(reading: Reading, node: Node) -> Holds:
    """``x[..]``: one of several tensors, or a part of one."""
    source, index = node.args
    found = reading.held[source]  # type: ignore[index]
    if isinstance(found, tuple):
        return found[index]  # type: ignore[index]
    return _indexed(reading, node, source, index if isinstance(index, tuple) else (index,))


def _indexed(reading: Reading, node: Node, source: Any, items: tuple[Any, ...]) -> Holds:
    """``x[..., a:b]``, ``x[..., k, :]`` of stacked parts and ``x[..., k]`` of pairs; all rows stay."""
    held, rank = reading.of(source), len(shape_of(source))
    given = [entry for entry in items if entry is not Ellipsis]
    entries = [_ALL] * (rank - len(given)) + given if items[0] is Ellipsis else given
    *rows, before, last = entries if len(entries) == rank > 1 else (None, None, None)
    if any(entry != _ALL for entry in rows):
        raise parted(node)
    if held.stacked and isinstance(before, int) and last == _ALL:
        return in_parts(reading, held, [1])[0]
    if held.paired and before == _ALL and isinstance(last, int):
        return _of_pairs(reading, held)
    if before != _ALL or not isinstance(last, slice):
        raise parted(node)
    return _cut(reading, node, source, last)


def selected(reading: Reading, node: Node) -> Holds:
    """``select`` of one of several parts, or of one feature of each pair."""
    return _taken(reading, node, argument(node, 1, "dim", 0))


def unbound(reading: Reading, node: Node) -> Holds:
    """``unbind`` of parts or pairs."""
    source: Any = node.args[0]
    return (_taken(reading, node, argument(node, 1, "dim", 0)),) * reading.of(source).parts


def _taken(reading: Reading, node: Node, dim: int) -> Held:
    source: Any = node.args[0]
    held, rank = reading.of(source), len(shape_of(source))
    if held.stacked and dim % rank == rank - 2:
        return in_parts(reading, held, [1])[0]
    if held.paired and dim % rank == rank - 1:
        return _of_pairs(reading, held)
    raise parted(node)
