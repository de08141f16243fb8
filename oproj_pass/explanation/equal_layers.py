"""What was found in two layers of each kind, told for all layers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, Protocol, TypeVar

from oproj_pass.tracing.equal_layers import ShortenedStack

__all__ = ["for_all_layers", "kinds_agree"]


class _Found(Protocol):
    @property
    def path(self) -> str:
        """The module path."""


_Row = TypeVar("_Row", bound=_Found)


def kinds_agree(stack: ShortenedStack, rows: Sequence[Any]) -> bool:
    """Whether the first and the last layer of every kind have equal rows, but for the number."""
    by_layer = _by_layer(stack, rows)
    return all(
        [_renumbered(stack, row, kind[0]) for row in by_layer.get(kind[-1], [])] == by_layer.get(kind[0], [])
        for kind in stack.kinds
    )


def for_all_layers(stack: ShortenedStack, rows: Iterable[_Row]) -> Iterator[_Row]:
    """The rows of every layer, in the layers' order; what is outside the stack stays before or behind it."""
    rows = list(rows)
    by_layer = _by_layer(stack, rows)
    inside = [stack.number_of(row.path) is not None for row in rows]
    start = inside.index(True) if any(inside) else len(rows)
    first_of = {number: kind[0] for kind in stack.kinds for number in kind}
    yield from rows[:start]
    for number in sorted(first_of):
        yield from (_renumbered(stack, row, number) for row in by_layer.get(first_of[number], []))
    yield from (row for row, is_inside in zip(rows[start:], inside[start:], strict=True) if not is_inside)


def _by_layer(stack: ShortenedStack, rows: Iterable[_Row]) -> dict[int | None, list[_Row]]:
    found: dict[int | None, list[_Row]] = {}
    for row in rows:
        found.setdefault(stack.number_of(row.path), []).append(row)
    return found


def _renumbered(stack: ShortenedStack, row: Any, number: int) -> Any:
    """A row with every path in it led into layer ``number``."""
    assert is_dataclass(row)
    assert not isinstance(row, type)
    paths = {
        name: stack.renumbered(value, number)
        for name, value in vars(row).items()
        if isinstance(value, str) and stack.number_of(value) is not None
    }
    return replace(row, **paths)
