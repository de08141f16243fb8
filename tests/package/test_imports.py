"""Imports point one way: between the rooms of the code as between its modules."""

import ast
from importlib import import_module
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"oproj_pass": "oproj_pass", "passes": "oproj_pass.passes", "capture": "oproj_pass.capture"}
BASE = {"oproj_pass.errors", "oproj_pass.first_use", "oproj_pass.torch_internals", "oproj_pass.suggestion"}
# Each room with those that it may stand on, besides itself and ``BASE``.
PASSES = {
    "contract": set(),
    "graph": {"capture"},
    "gemm": {"graph"},
    "sites": {"contract", "gemm", "graph"},
    "diff": {"graph"},
    "runner": {"contract", "graph"},
    "graph_fingerprint": {"graph"},
    "history": {"contract", "diff", "runner"},
    "traffic": set(),
    "strategies": {"gemm", "graph", "sites", "traffic"},
    "shard": {"contract", "gemm", "graph", "sites", "strategies"},
    "context_parallel": {"contract", "graph"},
    "redundant_collectives": {"contract", "graph"},
    "overlap": {"contract", "graph", "strategies"},
    "ascend": {"contract", "gemm", "graph", "runner", "shard", "sites", "strategies"},
}


def modules():
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join((package, *(part for part in parts if part != "__init__"))), path


def running(tree):
    """The nodes of a module, less those that only type checkers see."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from running(node)


def imported(path):
    """Modules and names that a file imports when it runs, as dotted names."""
    for node in running(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("oproj_pass"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("oproj_pass"))


def names_of(package):
    """The names of a package that load on first use, each with the module that this loads."""
    return {name: f"{package}.{module}" for name, module in vars(import_module(package))["_MODULES"].items()}


@pytest.fixture(scope="module")
def imports():
    """Module -> the modules that it imports."""
    known = dict(modules())
    on_first_use = {package: names_of(package) for package in ("oproj_pass.passes", "oproj_pass.passes.diff")}

    def module_of(name):
        package, _, attribute = name.rpartition(".")
        return name if name in known else on_first_use.get(package, {}).get(attribute, package)

    return {module: {module_of(name) for name in imported(path)} for module, path in known.items()}


def room(module):
    """``gemm`` of ``oproj_pass.passes.gemm.forms``."""
    return module.removeprefix("oproj_pass.passes").removeprefix(".").partition(".")[0]


def test_no_modules_import_each_other(imports):
    graph = nx.DiGraph((module, other) for module, others in imports.items() for other in others)
    graph.remove_node("oproj_pass")  # its names load on first use
    assert [sorted(cycle) for cycle in nx.strongly_connected_components(graph) if len(cycle) > 1] == []


def test_explaining_stands_on_the_search_for_sites_and_nothing_that_rewrites(imports):
    graph = nx.DiGraph((module, other) for module, others in imports.items() for other in others)
    graph.add_edges_from((module, module.rpartition(".")[0]) for module in imports)  # a package loads first
    graph.remove_node("oproj_pass")
    loaded = nx.descendants(graph, "oproj_pass.explanation.explaining")
    assert {"oproj_pass.backend.finding", "oproj_pass.passes.sites.attention_output"} <= loaded
    rewriting = ("backend.entry", "agreement", "passes.ascend", "passes.context_parallel", "passes.overlap")
    assert [name for name in sorted(loaded) if name.removeprefix("oproj_pass.").startswith(rewriting)] == []


def test_planning_stands_on_nothing_else(imports):
    found = {other for module, others in imports.items() if ".capture" in module[:19] for other in others}
    assert {other for other in found - BASE if not other.startswith("oproj_pass.capture")} == set()


def test_passes_stand_on_passes_and_the_rule_of_chunks_alone(imports):
    found = {other for module, others in imports.items() if ".passes." in module for other in others}
    found -= {"oproj_pass.capture.chunks"}
    assert {other for other in found - BASE if not other.startswith("oproj_pass.passes")} == set()


@pytest.mark.parametrize("name", PASSES)
def test_a_room_of_the_passes_stands_on_the_ones_below_it(imports, name):
    inside = {
        module: others for module, others in imports.items() if room(module) == name and ".passes." in module
    }
    assert inside
    found = {room(other) for others in inside.values() for other in others - BASE if ".passes." in other}
    assert found <= PASSES[name] | {name}


def test_every_room_of_the_passes_is_listed(imports):
    rooms = {room(module) for module in imports if module.startswith("oproj_pass.passes.")}
    assert rooms == PASSES.keys()
