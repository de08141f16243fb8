"""The list of torch's private names is the code's own, this torch has them all, and another is told so."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from oproj_pass import TorchVersionError, torch_internals
from oproj_pass.torch_internals import INTERNALS, REACHED_THROUGH_OBJECTS, SUPPORTED, require_internals
from tests.support.torch_names import longest, private_names, private_names_under

ROOT = Path(__file__).parents[2]


def modules_with_private_names(folder):
    """Modules below ``folder`` that use private names, any of which may be imported first."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if private_names(path.read_text(encoding="utf-8")):
            yield ".".join(("oproj_pass", *path.relative_to(ROOT).with_suffix("").parts))


PASSES = private_names_under(ROOT / "passes")
USED = {
    "oproj_pass.passes": PASSES,
    "oproj_pass": private_names_under(ROOT / "oproj_pass") - PASSES,
}
# What a user may import first, and what each must check before it imports anything private of torch.
DOORS = {
    "oproj_pass.backend": "oproj_pass",
    "oproj_pass.explanation.explain": "oproj_pass",
    "oproj_pass.passes.find_projections": "oproj_pass.passes",
    "oproj_pass.passes.fingerprint": "oproj_pass.passes",
    "oproj_pass.runtime": "oproj_pass",
    "oproj_pass.full_state_dict": "oproj_pass",
    "oproj_pass.shard_report": "oproj_pass",
    **dict.fromkeys(modules_with_private_names("passes"), "oproj_pass.passes"),
}
ON_A_TORCH_THAT_LACKS_SOME = """
import importlib, json, sys, torch._dynamo
from oproj_pass.torch_internals import INTERNALS, require_internals

def inductor():
    return {name for name in sys.modules if name.startswith("torch._inductor")}

def told(door):
    for name in [name for name in sys.modules if name.startswith("oproj_pass")]:
        del sys.modules[name]
    package, _, name = door.rpartition(".")
    try:
        getattr(importlib.import_module(package), name, None) or importlib.import_module(door)
    except ImportError as error:
        return f"{type(error).__name__}: {error}"

before = inductor()
for package in INTERNALS:
    require_internals(package)
loaded = inductor() - before
del torch._dynamo.exc.ShortenTraceback, torch._guards.GuardsSet.remove_guards_with_source
del torch._C._distributed_c10d._resolve_process_group
print(json.dumps([sorted(loaded), {door: told(door) for door in sys.argv[1:]}]))
"""


@pytest.fixture
def not_yet_checked():
    require_internals.cache_clear()
    yield
    require_internals.cache_clear()


@pytest.fixture(scope="module")
def another_torch():
    """Modules of Inductor that checking loads, and what each door says where torch lacks three names."""
    command = [sys.executable, "-c", ON_A_TORCH_THAT_LACKS_SOME, *DOORS]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("package", INTERNALS)
def test_lists_exactly_the_private_names_that_the_code_uses(package):
    listed = set(INTERNALS[package]) - set(REACHED_THROUGH_OBJECTS)
    missing, unused = USED[package] - listed, listed - USED[package]
    assert not missing, f"add to INTERNALS[{package!r}]: " + "".join(
        f'\n"{name}",' for name in sorted(missing)
    )
    assert not unused, f"drop from INTERNALS[{package!r}], the code no longer uses: {sorted(unused)}"


def test_lists_no_method_that_the_code_no_longer_calls():
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "oproj_pass").rglob("*.py"))
    names = {name: name.rpartition(".")[2] for name in REACHED_THROUGH_OBJECTS}
    assert [name for name, last in names.items() if f".{last}" not in code.replace(name, "")] == []


@pytest.mark.parametrize("package", INTERNALS)
def test_lists_in_order_and_once(package):
    listed = [name for name in INTERNALS[package] if name not in REACHED_THROUGH_OBJECTS]
    assert listed == sorted(longest(listed))


def test_planning_uses_none():
    assert private_names_under(ROOT / "capture") == set()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch\ntorch._a.b(1)", {"torch._a.b"}),
        ("import torch._a as short\nshort.b.c", {"torch._a.b.c"}),
        ("import torch._a\nfrom torch._a import b as c\nc.d = 1", {"torch._a.b.d"}),
        ("from torch import _a, nn\nx, y = nn.z, _a.b\ny.c()", {"torch._a.b.c"}),
        (
            "from torch._a import config\nwith config.patch(b=1): pass",
            {"torch._a.config.b", "torch._a.config.patch"},
        ),
        ("import torch.distributed as dist\ndist._b", {"torch.distributed._b"}),
        ("import torch\ntorch.nn.Module.__call__", set()),
        ("import other\nother._a", set()),
        ("from oproj_pass import _a", set()),
    ],
)
def test_reads_private_names_off_the_code(source, names):
    assert private_names(source) == names


@pytest.mark.parametrize("package", INTERNALS)
def test_this_torch_has_them_all(package, not_yet_checked, caplog):
    require_internals(package)
    assert not caplog.records


@pytest.mark.parametrize(
    "missing",
    [
        "torch._no_such_module.name",
        "torch._dynamo.no_such_module.name",
        "torch._C._no_such",
        "torch._guards.GuardsSet().no_such",
        "torch._guards.Guard().name",
        "torch.ops._no.op",
    ],
)
def test_names_torch_s_version_what_is_missing_and_what_is_supported(missing, monkeypatch, not_yet_checked):
    import torch

    monkeypatch.setitem(INTERNALS, "oproj_pass", (*INTERNALS["oproj_pass"], missing))
    with pytest.raises(TorchVersionError) as refused:
        require_internals("oproj_pass")
    for part in (f"torch {torch.__version__} lacks 1 ", f": {missing}.", "torch>={},<{}:".format(*SUPPORTED)):
        assert part in str(refused.value)


def test_warns_of_a_torch_that_has_them_all_but_was_not_tested(monkeypatch, not_yet_checked, caplog):
    monkeypatch.setattr(torch_internals, "SUPPORTED", ("2.1", "2.2"))
    require_internals("oproj_pass.passes")
    assert "was not tested: torch>=2.1,<2.2 were" in caplog.text


@pytest.mark.parametrize("door", DOORS)
def test_is_told_at_every_door_before_python_s_own_import_error(door, another_torch):
    told = another_torch[1][door]
    assert told.startswith("TorchVersionError: torch ")
    assert f" that {DOORS[door]} uses" in told
    assert ("torch._dynamo.exc.ShortenTraceback" in told) == (DOORS[door] == "oproj_pass")


def test_checking_loads_no_more_of_inductor_than_dynamo_did(another_torch):
    assert another_torch[0] == []


def test_supports_what_the_package_asks_pip_for():
    first, beyond = SUPPORTED
    assert f'"torch>={first},<{beyond}"' in (ROOT / "pyproject.toml").read_text()
