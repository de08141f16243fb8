"""Wraps a function of a class in place, once; decides nothing about what the wrapper does."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

_MARK = "__oproj_pass_wrapped__"

Function = Callable[..., Any]


def wrap(owner: type, name: str, wrapper: Callable[[Function], Function]) -> None:
    """Put ``wrapper(function)`` in the place of ``owner.name``, a method or a class method.

    A subclass that inherits the function gets a wrapped one of its own; a second call changes nothing.
    """
    found = inspect.getattr_static(owner, name)
    function = found.__func__ if isinstance(found, classmethod) else found
    if hasattr(function, _MARK):
        return
    wrapped = functools.wraps(function)(wrapper(function))
    setattr(wrapped, _MARK, True)
    setattr(owner, name, classmethod(wrapped) if isinstance(found, classmethod) else wrapped)
