"""Says why compiled code does not fit a call: Dynamo's failed guards, and what to do about a number.

Reads Dynamo's caches; decides nothing.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

from torch._dynamo import eval_frame
from torch._dynamo.guards import get_guard_fail_reason

_COMMENT = re.compile(r"\s+#.*")
_NUMBER = re.compile(r"\d+/\d+: (?P<source>[^=]+?) == (?:-?\d\S*|True|False)$")


def failed_guards(
    code: CodeType, f_locals: Mapping[str, Any], backend: Callable[..., Any] | None = None
) -> list[str]:
    """For each compiled version of ``code``, the first guard that these locals fail, newest first.

    ``backend``: what would compile it; by default the same as before.
    """
    reasons = (
        get_guard_fail_reason(
            entry.guard_manager,
            entry.code,
            dict(f_locals),
            entry.compile_id,
            entry.backend if backend is None else backend,
            skip_logging=True,
        )
        for entry in eval_frame._debug_get_cache_entry_list(code)
    )
    return [_COMMENT.sub("", reason.strip().partition("\n")[0]) for reason in reasons if reason]


def describe_failures(guards: Sequence[str]) -> str:
    """The guards in one line, and the remedy where one of them holds a Python number."""
    remedy = number_remedy(guards)
    return f"guard {'; '.join(guards)}" + (f". {remedy}" if remedy else "")


def number_remedy(guards: Sequence[str]) -> str:
    """What to do about the first argument or attribute that is a Python number; empty if there is none."""
    for guard in guards:
        if match := _NUMBER.match(guard):
            return (
                f"`{match['source']}` is a Python number, and compiled code holds the value it had. If it "
                "changes between steps, pass it as a tensor: a buffer that is written in place, or a tensor "
                "input"
            )
    return ""
