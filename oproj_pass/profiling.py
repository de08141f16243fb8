"""Named ranges in a profiler's trace, at no cost where no profiler runs."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch.autograd import profiler

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def profiled(name: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Let each call of a function be a range ``name`` in the traces of ``torch.profiler``."""

    def wrap(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            if not profiler._is_profiler_enabled:
                return function(*args, **kwargs)
            with profiler.record_function(name):
                return function(*args, **kwargs)

        return call

    return wrap
