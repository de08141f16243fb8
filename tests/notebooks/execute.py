"""Runs a notebook in a kernel of its own, and cleans its outputs of what differs by machine and by day.

`python -m tests.notebooks.execute` runs every notebook and writes the outputs back.
"""

import os
import re
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TIMEOUT = 120

_CELL_FILE = re.compile(r"(?:/[\w.-]+)*/ipykernel_\d+/\d+\.py")
_SITE_PACKAGES = re.compile(r"(?:/[\w.+-]+)+/site-packages/")
ABSOLUTE_PATH = re.compile(r"(?<![\w./:-])/(?:home|root|tmp|usr|opt|work|var|mnt|private|Users)/[\w./-]+")


def execute(path, timeout=TIMEOUT):
    """The notebook with fresh outputs; raises ``CellExecutionError`` where a cell raises."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    client = NotebookClient(
        notebook, timeout=timeout, kernel_name="python3", record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )  # fmt: skip
    with _folders_of_its_own():
        client.execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [clean(output) for output in merge_streams(cell.outputs)]
    return notebook


def merge_streams(outputs):
    """Outputs with consecutive pieces of one stream as one: a kernel cuts them by time."""
    merged = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last is not None and output.output_type == "stream" and last.get("name") == output.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def clean(output):
    """The output without paths of this machine."""
    if output.output_type == "stream":
        output.text = _without_paths(output.text)
    for kind, data in output.get("data", {}).items():
        if kind.startswith("text/"):
            output.data[kind] = _without_paths(data)
    return output


def texts(cell):
    """Every text that the cell's outputs hold."""
    for output in cell.get("outputs", []):
        yield output.get("text", "")
        yield from (data for kind, data in output.get("data", {}).items() if kind.startswith("text/"))


def _without_paths(text):
    text = _CELL_FILE.sub("notebook.py", text)
    text = _SITE_PACKAGES.sub("site-packages/", text)
    return text.replace(f"{ROOT}/", "").replace(f"{Path(sys.base_prefix)}/", "")


@contextmanager
def _folders_of_its_own():
    """Keeps the kernel's and matplotlib's files out of the user's home."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
            os.environ[name] = f"{folder}/{name.lower()}"
        os.environ.update(OMP_NUM_THREADS="2", TQDM_DISABLE="1")
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


if __name__ == "__main__":
    wanted = [path for path in NOTEBOOKS if not sys.argv[1:] or path.stem[:2] in sys.argv[1:]]
    for path in wanted:
        nbformat.write(execute(path), path)
        print(path.name)
