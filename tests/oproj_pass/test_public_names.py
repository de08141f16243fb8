"""The front door: what it offers, and what it loads."""

import subprocess
import sys

import pytest

import oproj_pass


@pytest.mark.parametrize("name", oproj_pass.__all__)
def test_offers_every_public_name(name):
    assert getattr(oproj_pass, name).__name__ == name


def test_refuses_an_unknown_name():
    with pytest.raises(AttributeError, match="no_such_name"):
        oproj_pass.no_such_name  # noqa: B018


@pytest.mark.parametrize("module", ["oproj_pass", "oproj_pass.capture", "oproj_pass.deployment"])
def test_planning_and_checking_load_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
