"""A mkdocs hook: shows each notebook as a page, with the outputs that are committed with it."""

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_TERMINAL_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_TO_DOCS = re.compile(r"\]\(\.\./docs/")
_TO_REPOSITORY = re.compile(r"\]\(\.\./(?!docs/)")
_REPOSITORY = "https://github.com/oproj-pass/oproj-pass/blob/main/"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each notebook."""
    for path in sorted((Path(config.config_file_path).parent / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=as_markdown(path)))
    return files


def as_markdown(path: Path) -> str:
    """The notebook's cells and outputs as one page."""
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(part for cell in cells for part in _parts(cell)) + "\n"


def _parts(cell: Any) -> Iterator[str]:
    if cell.cell_type == "markdown":
        yield _TO_REPOSITORY.sub(f"]({_REPOSITORY}", _TO_DOCS.sub("](../", cell.source))
    elif cell.cell_type == "code":
        yield f"```python\n{cell.source}\n```"
        yield from map(_shown, cell.outputs)


def _shown(output: Any) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>'
    if "image/png" in data:
        picture = data["image/png"].replace("\n", "")
        alt = escape(data.get("text/plain", ""))
        return f'<img class="output" alt="{alt}" src="data:image/png;base64,{picture}">'
    text = output.get("text") or data.get("text/plain", "")
    return f"```text\n{_TERMINAL_COLOUR.sub('', text).rstrip()}\n```"
