"""Runs the tests on every version of torch, torch_npu and vLLM that is supported, and writes what came of it.

    python -m scripts.versions                                # the whole matrix: hours
    python -m scripts.versions torch-2.15.0 --tests tests/passes
    python -m scripts.versions --list

Each environment is made by the Makefile, in a folder of its own under ``.versions/``. A finished run becomes
a row of the table in docs/versions.md, in the place of that environment's last; no row is written by hand.
"""

import argparse
import logging
import os
import subprocess
import sys
from pathlib import Path

from scripts.versions_matrix import MATRIX, Environment
from scripts.versions_table import Run, checked_out, read_counts, record, today, versions_in

ROOT = Path(__file__).parents[1]
REPORT = "report.xml"
ONE_CORE_A_PROCESS = {"OMP_NUM_THREADS": "1"}
UNCONSTRAINED = {"PIP_CONSTRAINT": os.devnull}  # a machine's own constraints must not choose the versions
CAME_TO_AN_END = (0, 1)  # of pytest: all passed, some failed; not: interrupted, misused, none collected
logger = logging.getLogger("versions")


def main() -> int:
    """Run the environments asked for; 1 if any test failed in one."""
    arguments = _arguments()
    if arguments.list:
        logger.info("%s", "\n".join(f"{environment.name}: {environment.about}" for environment in MATRIX))
        return 0
    chosen = [one for one in MATRIX if not arguments.names or one.name in arguments.names]
    runs = [_run(one, arguments.folder, tuple(arguments.tests), arguments.workers) for one in chosen]
    return 0 if all(run is not None and not run.failed for run in runs) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="environment", help="which; all of them without one")
    parser.add_argument("--tests", nargs="+", default=[], help="instead of all tests of an environment")
    parser.add_argument("--folder", type=Path, default=ROOT / ".versions", help="where environments are made")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests side by side")
    parser.add_argument("--list", action="store_true", help="say which environments there are")
    arguments = parser.parse_args()
    known = {environment.name for environment in MATRIX}
    if unknown := set(arguments.names) - known:
        parser.error(f"no environment {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    return arguments


def _run(environment: Environment, folder: Path, some: tuple[str, ...], workers: int) -> Run | None:
    """Make the environment, run its tests and record them; None where either did not come to an end."""
    home = folder.resolve() / environment.name
    make = ["make", f"{home}/.installed", *environment.make_variables(home)]
    if (made := subprocess.run(make, cwd=ROOT, env={**os.environ, **UNCONSTRAINED}, check=False)).returncode:
        logger.error("%s: `make` ended with %s, see above", environment.name, made.returncode)
        return None
    python, report = home / "bin" / "python", home / REPORT
    report.unlink(missing_ok=True)
    tests = some or environment.tests
    parallel = ["-n", str(workers), "--dist", "loadfile"] if environment.parallel and workers > 1 else []
    command = [str(python), "-m", "pytest", *parallel, f"--junitxml={report}", *tests]
    commit = checked_out()
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **ONE_CORE_A_PROCESS}, check=False)
    if ended.returncode not in CAME_TO_AN_END:
        logger.error("%s: pytest ended with %s, which is not recorded", environment.name, ended.returncode)
        return None
    what = environment.name, versions_in(python), " ".join(tests) or "all"
    run = Run(*what, today(), commit, **read_counts(report))
    record(run)
    logger.info("%s: %s", environment.name, run)
    return run


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
