"""Every notebook runs, and the outputs committed with it are those that it makes."""

import re
import shutil

import pytest

nbformat = pytest.importorskip("nbformat", reason="the notebooks need the extra `notebooks`")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")

from tests.notebooks.execute import ABSOLUTE_PATH, NOTEBOOKS, execute, merge_streams, texts  # noqa: E402

NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
REFRESH = "If the new output is right: python -m tests.notebooks.execute"
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def structure(cell):
    """What a cell put out: kinds, and plain text with its numbers masked."""
    shape = []
    for output in merge_streams(cell.outputs):
        kinds = sorted(output.get("data", {}))
        plain = output.get("text", "") or output.get("data", {}).get("text/plain", "")
        shape.append((output.output_type, output.get("name"), kinds, NUMBER.sub("#", plain).split()))
    return shape


def test_there_are_five():
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@each
def test_runs_and_makes_the_committed_outputs(path, tmp_path):
    shutil.copy(path, tmp_path)
    fresh = [cell for cell in execute(tmp_path / path.name).cells if cell.cell_type == "code"]
    for committed, made in zip(code_cells(path), fresh, strict=True):
        assert structure(committed) == structure(made), f"{committed.source}\n\n{REFRESH}"


@each
def test_committed_outputs_hold_no_error_no_warning_and_no_path_of_a_machine(path):
    for cell in code_cells(path):
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text
        for text in texts(cell):
            assert ABSOLUTE_PATH.findall(text) == []


@each
def test_is_committed_as_run_from_top_to_bottom_without_timestamps(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all("execution" not in cell.metadata for cell in cells)
