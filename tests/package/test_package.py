"""The package as users get it: a wheel and an editable install, each used from an empty folder."""

import os
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.package import typecheck

ROOT = Path(__file__).parents[2]
USE = """
import importlib.metadata, oproj_pass.passes, oproj_pass.capture
from torch._dynamo.backends.registry import lookup_backend
assert lookup_backend("oproj_npu").__module__ == "oproj_pass.backend.entry"
assert oproj_pass.__version__ == importlib.metadata.version("oproj-pass")
print(oproj_pass.passes.__file__)
"""


def run(*command, cwd, **environment):
    result = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def environment_with(tmp_path, *install):
    """A new environment that borrows this one's dependencies, with the package installed as told."""
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "zz_borrowed.pth").write_text(f"import sys; sys.path.extend({borrowed!r})\n")
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", *install, cwd=tmp_path)
    return python


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_installs_and_registers_the_backend_by_name(how, wheel, tmp_path):
    python = (
        environment_with(tmp_path, wheel)
        if how == "wheel"
        else environment_with(tmp_path, "--editable", ROOT)
    )
    used = Path(run(python, "-c", USE, cwd=tmp_path).strip())
    assert (ROOT in used.parents) == (how == "editable")


def test_ships_its_types_its_licence_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "oproj_pass/py.typed" in names
    assert "oproj_pass/passes/sites/attention_output.py" in names
    assert "oproj_pass/capture/plan.py" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "passes/", "capture/")) for name in names)


def test_states_what_an_index_shows(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = message_from_bytes(archive.read(name))
    assert metadata["Version"] == version("oproj-pass")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = {link.partition(",")[0] for link in metadata.get_all("Project-URL")}
    assert links == {"Changelog", "Documentation", "Issues", "Repository"}


def test_ships_every_subpackage(wheel):
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("oproj_pass/")}
    for folder, prefix in (
        ("oproj_pass", "oproj_pass"),
        ("passes", "oproj_pass/passes"),
        ("capture", "oproj_pass/capture"),
    ):
        for source in (ROOT / folder).rglob("*"):
            if source.suffix in {".py", ".css", ".js", ".html"}:
                assert f"{prefix}/{source.relative_to(ROOT / folder)}" in shipped


@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("mypy") is None, reason="type checking needs the extra `dev`")
def test_type_checks_strictly(wheel, capfd):
    assert typecheck.main(wheel) == 0, capfd.readouterr().out
