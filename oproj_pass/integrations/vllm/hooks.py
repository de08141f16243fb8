"""Wraps functions of classes in place, each once; decides nothing about what a wrapper does."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

FIRST_CALL = "init_device"
"""Of ``WorkerWrapperBase``, the first call after its worker is made. A worker's process loads plugins while
it makes the worker, so what is wrapped around the making itself would not be called there."""

_MARK = "__oproj_pass_wrapped__"

Function = Callable[..., Any]


def wrap(owner: Any, name: str, wrapper: Callable[[Function], Function]) -> None:
    """Put ``wrapper(function)`` in the place of ``owner.name``: a method, class method or module's function.

    A subclass that inherits the function gets a wrapped one of its own; a second call with the same wrapper
    changes nothing.
    """
    found = inspect.getattr_static(owner, name)
    function = found.__func__ if isinstance(found, classmethod) else found
    wrappers = getattr(function, _MARK, ())
    if wrapper in wrappers:
        return
    wrapped = functools.wraps(function)(wrapper(function))
    setattr(wrapped, _MARK, (*wrappers, wrapper))
    setattr(owner, name, classmethod(wrapped) if isinstance(found, classmethod) else wrapped)


def follow(worker: Any, name: str, then: Callable[[], None]) -> None:
    """Do ``then`` after each call of a method of this worker."""
    method = getattr(worker, name)

    @functools.wraps(method)
    def followed(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        then()
        return result

    setattr(worker, name, followed)


def wrap_constructions(base: Any, wrapper: Callable[[Function], Function]) -> None:
    """Wrap ``__init__`` of ``base`` and of its subclasses, those included that are yet to be defined."""

    def wrap_new(cls: type[Any], /, **arguments: Any) -> None:
        super(base, cls).__init_subclass__(**arguments)
        _wrap_family(cls, wrapper)

    base.__init_subclass__ = classmethod(wrap_new)
    _wrap_family(base, wrapper)


def _wrap_family(cls: type[Any], wrapper: Callable[[Function], Function]) -> None:
    if "__init__" in vars(cls):
        wrap(cls, "__init__", wrapper)
    subclass: type[Any]
    for subclass in cls.__subclasses__():
        _wrap_family(subclass, wrapper)
