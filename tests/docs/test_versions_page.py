"""The page's table is the record of what ran, and the matrix covers what is supported."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oproj_pass.torch_internals import SUPPORTED
from scripts import versions_table
from scripts.versions_matrix import MATRIX
from scripts.versions_table import BEGIN, END, Run, checked_out, read_counts, record, recorded, table

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
REPORT = """<?xml version="1.0"?><testsuites>
<testsuite name="a" errors="1" failures="2" skipped="3" tests="10"/>
<testsuite name="b" errors="0" failures="0" skipped="0" tests="4"/></testsuites>"""


def run(environment="torch-9", tests="all", passed=5, date="2030-01-02"):
    return Run(environment, {"python": "3.11.7", "torch": "9"}, tests, date, "abc1234", passed, 0, 1)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """An empty page and record, in the places of the real ones."""
    monkeypatch.setattr(versions_table, "PAGE", tmp_path / "versions.md")
    monkeypatch.setattr(versions_table, "RECORD", tmp_path / "versions.json")
    versions_table.PAGE.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    versions_table.RECORD.write_text("[]")
    return versions_table.PAGE


def test_shows_what_is_on_record_and_nothing_else():
    assert f"{BEGIN}\n{table(recorded())}\n{END}" in PAGE


def test_every_row_is_of_an_environment_of_the_matrix():
    assert {one.environment for one in recorded()} <= {environment.name for environment in MATRIX}


def test_the_matrix_has_every_supported_minor_version_of_torch():
    pins = [one.pins["TORCH"] for one in MATRIX if "TORCH" in one.pins]
    tested = {tuple(map(int, re.findall(r"\d+", pin)[:2])) for pin in pins}
    (major, first), (_, beyond) = (map(int, version.split(".")) for version in SUPPORTED)
    assert tested == {(major, minor) for minor in range(first, beyond)}


@pytest.mark.parametrize("environment", MATRIX, ids=lambda one: one.name)
def test_the_makefile_knows_what_the_matrix_tells_it(environment, tmp_path):
    told = list(environment.make_variables(tmp_path / "home"))
    assert all(re.search(rf"^{pair.partition('=')[0]} \?=", MAKEFILE, re.MULTILINE) for pair in told)
    plan = ["make", "--dry-run", f"{tmp_path}/home/.installed", *told]
    steps = subprocess.run(plan, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for pin in environment.pins.values():
        assert f"{tmp_path}/home/bin/pip install --quiet {pin}\n" in steps


def test_a_run_takes_the_place_of_the_last_one_of_its_environment_and_tests(page):
    for one in (run(), run(tests="tests/a"), run("torch-8"), run(passed=7, date="2030-03-04")):
        record(one)
    kept = [(one.environment, one.tests, one.passed) for one in recorded()]
    assert kept == [("torch-8", "all", 5), ("torch-9", "all", 7), ("torch-9", "tests/a", 5)]
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n|")
    assert text.endswith(f"|\n{END}\nafter\n")
    assert text.count("python 3.11.7, torch 9 |") == 3
    assert "| python 3.11.7, torch 9 | `tests/a` | 5 | 0 | 1 | 2030-01-02, `abc1234` |" in text
    assert "old" not in text


def test_a_fixture_that_fails_counts_as_failed(tmp_path):
    (tmp_path / "report.xml").write_text(REPORT)
    assert read_counts(tmp_path / "report.xml") == {"passed": 8, "failed": 3, "skipped": 3}


def test_names_the_commit_that_ran():
    assert re.fullmatch(r"[0-9a-f]{7,}(, changed)?", checked_out())


def test_refuses_an_environment_that_is_not_there():
    command = [sys.executable, "-m", "scripts.versions", "torch-1.0"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "no environment torch-1.0; there are torch-2.13.0" in result.stderr


def test_the_record_is_readable_by_others():
    rows = json.loads((ROOT / "docs" / "assets" / "versions.json").read_text(encoding="utf-8"))
    assert all(set(row) == set(Run.__dataclass_fields__) for row in rows)
