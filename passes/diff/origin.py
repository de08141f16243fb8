"""Names an FX node's origin the same way in every process: its target, its source line, places in the model.

Decides the printed form only, and guesses nothing: a node without metadata has no source line. Module paths
themselves are read by `oproj_pass.passes.graph.provenance`.
"""

import re
from collections.abc import Iterable
from typing import Any

import torch.fx

from oproj_pass.passes.graph.ops import is_overload

__all__ = ["common_path", "generalise_path", "source_line", "target_name"]

_FRAME = re.compile(r'File "(?P<file>[^\n"]*)", line (?P<line>\d+)')


def source_line(node: torch.fx.Node) -> str:
    """`file:line` of the innermost frame in `node.meta["stack_trace"]`; empty where there is none."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    return f"{frames[-1]['file']}:{frames[-1]['line']}" if frames else ""


def target_name(target: Any) -> str:
    """A name for a node's target that is the same in every process, so never an address."""
    if isinstance(target, str):
        return target
    if is_overload(target):
        return f"torch.ops.{target}"
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    if name is None:
        return f"{type(target).__module__}.{type(target).__qualname__}"
    # torch.reshape and the operator module know themselves by a private name.
    name = name.removeprefix("_VariableFunctionsClass.")
    module = (getattr(target, "__module__", None) or "torch").removeprefix("_")
    return f"{module}.{name}"


def common_path(paths: Iterable[str]) -> str:
    """The innermost module path that holds every one of `paths`; unknown (empty) ones do not count."""
    known = [path.split(".") for path in paths if path]
    if not known:
        return ""
    shared = []
    for parts in zip(*known, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def generalise_path(path: str) -> str:
    """`path` with every index replaced by `*`: equal for the same place in two equal layers."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))
