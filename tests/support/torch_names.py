"""Reads from source code which private names of torch it uses, without running it.

A name is private where one of its parts begins with an underscore. Followed: imports, their aliases, and
names bound to such a name (``functional = torch.ops._c10d_functional``). Not seen: attributes of objects.
"""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path


def private_names(source: str) -> set[str]:
    """Full dotted names, the longest that are spelled: ``torch._dynamo.config.recompile_limit``."""
    tree = ast.parse(source)
    bound = dict(_imported(tree))
    for target, value in _assignments(tree):
        if isinstance(target, ast.Name) and (name := _dotted(value, bound)):
            bound[target.id] = name
    spelled = {_dotted(node, bound) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return longest(
        name for name in {*bound.values(), *spelled, *_patched(tree, bound)} if name and _is_private(name)
    )


def private_names_under(folder: Path) -> set[str]:
    """The same for all Python files under ``folder``."""
    return longest(
        name for path in folder.rglob("*.py") for name in private_names(path.read_text(encoding="utf-8"))
    )


def longest(names: Iterable[str]) -> set[str]:
    """Without the names that another one goes on from: who has that one has them too."""
    names = set(names)
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


def _is_private(name: str) -> bool:
    root, *parts = name.split(".")
    return root == "torch" and any(part.startswith("_") for part in parts)


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def _patched(tree: ast.AST, bound: dict[str, str]) -> Iterator[str]:
    """The fields that ``config.patch(field=...)`` sets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _dotted(node.func, bound) or "").endswith("config.patch"):
            yield from (f"{name.removesuffix('patch')}{keyword.arg}" for keyword in node.keywords)


def _dotted(node: ast.expr, bound: dict[str, str]) -> str | None:
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, bound)
        return base and (base if node.attr.endswith("__") else f"{base}.{node.attr}")
    return bound.get(node.id) if isinstance(node, ast.Name) else None
