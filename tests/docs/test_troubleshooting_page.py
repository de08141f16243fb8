"""The page lists every error that the backend, the passes and the runtime raise, and no other."""

import ast
import re
from pathlib import Path

import pytest

from oproj_pass import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
LISTED = [
    cell for cell in re.findall(r"^\| `([^|`]+)`[^|]* \| ", PAGE, re.MULTILINE) if cell not in errors.__all__
]
SOURCES = [
    path
    for folder in ("oproj_pass", "passes", "capture")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not {"cli", "demo"} & set(path.parts)
]
# Their messages are documented by field and rule.
BY_FIELD = ("oproj_pass/deployment", "capture/")


def literal(node):
    """A message as it is written, with ``...`` for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(literal, node.values))
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "..."


TREES = {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
STRINGS = [
    literal(node)
    for tree in TREES.values()
    for node in ast.walk(tree)
    if isinstance(node, ast.JoinedStr | ast.Constant | ast.BinOp)
]


def raised():
    """Type and message of each error that is built in the code."""
    for where, tree in TREES.items():
        for node in ast.walk(tree):
            kind = getattr(getattr(node, "func", None), "id", None)
            if kind in errors.__all__ and node.args:
                by_field = kind in ("ConfigError", "OProjError") and where.startswith(BY_FIELD)
                if (message := literal(node.args[0])).strip(". :") and not by_field:
                    yield pytest.param(kind, message, id=f"{where}:{node.lineno}")


def section(name):
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("kind", "message"), list(raised()))
def test_every_message_is_listed_under_its_type(kind, message):
    assert any(f"`{part}`" in section(kind) for part in LISTED if part in message), message


@pytest.mark.parametrize("part", LISTED)
def test_every_listed_message_is_in_the_code(part):
    assert any(part in string for string in STRINGS)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_type_is_named(name):
    assert f"`{name}`" in PAGE
