"""Type-checks the package as users get it: built, installed apart, then read by ``mypy --strict``."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main(package: Path = ROOT) -> int:
    """The highest exit status of mypy's; ``package``: what pip installs."""
    with tempfile.TemporaryDirectory() as folder:
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            folder,
            str(package),
        ]
        subprocess.run(install, check=True)
        check = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
        environment = {**os.environ, "MYPYPATH": folder}
        what = [["-p", "oproj_pass"], [str(ROOT / "tests/ascend/cann/build.py")]]
        return max(
            subprocess.run(
                [*check, "--cache-dir", str(ROOT / ".mypy_cache"), *one],
                env=environment,
                cwd=folder,
                check=False,
            ).returncode
            for one in what
        )


if __name__ == "__main__":
    sys.exit(main())
