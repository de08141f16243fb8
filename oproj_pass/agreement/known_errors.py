"""Marks errors that every rank of a group has heard of, so that nobody tells them to the group again.

A second telling would wait for peers that have stopped listening.
"""

from collections.abc import Iterator
from typing import TypeVar

_MARK = "_oproj_pass_known_to_group"

Error = TypeVar("Error", bound=BaseException)


def known_to_group(error: Error) -> Error:
    """``error`` itself, marked."""
    setattr(error, _MARK, True)
    return error


def is_known_to_group(error: BaseException) -> bool:
    """Whether the error, or one that it wraps (as Dynamo does), is marked."""
    return any(hasattr(wrapped, _MARK) for wrapped in _chain(error, set()))


def _chain(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    if error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        yield from _chain(error.__cause__, seen)
        yield from _chain(error.__context__, seen)
