"""The front door: what it offers, and what it loads."""

import subprocess
import sys
from importlib import import_module

import pytest

import oproj_pass
from oproj_pass import deployment, passes
from oproj_pass.passes import diff

ON_FIRST_USE = [(package, name) for package in (passes, diff, deployment) for name in package.__all__]


@pytest.mark.parametrize("name", oproj_pass.__all__)
def test_offers_every_public_name(name):
    assert getattr(oproj_pass, name).__name__ == name


def test_refuses_an_unknown_name():
    with pytest.raises(AttributeError, match="no_such_name"):
        oproj_pass.no_such_name  # noqa: B018


@pytest.mark.parametrize(("package", "name"), ON_FIRST_USE)
def test_a_package_offers_every_name_that_loads_on_first_use(package, name):
    assert set(dir(package)) == set(package.__all__) == package._MODULES.keys()
    assert getattr(package, name) is not None
    with pytest.raises(ModuleNotFoundError):  # a module of that name would be found in its place
        import_module(f"{package.__name__}.{name}")


@pytest.mark.parametrize(
    "module", ["oproj_pass", "oproj_pass.capture", "oproj_pass.deployment", "oproj_pass.explanation.report"]
)
def test_planning_and_checking_load_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
