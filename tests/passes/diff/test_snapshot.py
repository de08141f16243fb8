"""What is recorded of a graph, and what a saved one must look like to be read."""

import json

import pytest
import torch
from torch import fx, nn

from oproj_pass.errors import ConfigError
from oproj_pass.passes.diff import GraphSnapshot, diff_graphs, snapshot
from oproj_pass.passes.diff.origin import common_path, source_line, target_name


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)[:, 1:].reshape(x.shape[0], -1).new_zeros((3, 4), dtype=torch.float16)
        return {"out": x, "pair": (x,)}


@pytest.fixture(scope="module")
def exported():
    tokens = torch.export.Dim("tokens", min=2, max=512)
    return torch.export.export(
        nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (torch.randn(4, 8),), dynamic_shapes=({0: tokens},)
    ).module()


def node_with(**meta):
    node = fx.Graph().call_function(torch.relu)
    node.meta.update(meta)
    return node


def test_survives_a_file_unchanged(decoder, tmp_path):
    for graph in decoder(2):
        graph.save(tmp_path / "graph.json")
        assert GraphSnapshot.load(tmp_path / "graph.json") == graph


def test_diffs_saved_graphs_as_it_does_live_ones(tmp_path):
    before = fx.symbolic_trace(lambda x: torch.relu(x))
    after = fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    live = diff_graphs(before, after.graph)
    snapshot(before).save(tmp_path / "before.json")
    saved = diff_graphs(GraphSnapshot.load(tmp_path / "before.json"), after)
    assert live.to_text() == saved.to_text() != ""


def test_is_untouched_by_a_later_rewrite():
    gm = fx.symbolic_trace(lambda x: torch.relu(x))
    before = snapshot(gm)
    (relu,) = gm.graph.find_nodes(op="call_function", target=torch.relu)
    relu.target = torch.tanh
    assert diff_graphs(before, gm).summary()["changed"] == 1


def test_prints_every_kind_of_argument():
    gm = fx.symbolic_trace(Block())
    printed = {node.name: node.args for node in snapshot(gm).nodes}
    texts = ["".join(part if type(part) is str else f"%{part.name}" for part in a) for a in printed.values()]
    assert "%layers_0, (slice(None, None, None), slice(1, None, None))" in texts
    assert "%reshape, (3, 4), dtype=torch.float16" in texts
    assert "{'out': %new_zeros_1, 'pair': (%new_zeros_1,)}" in texts


def test_reads_shapes_and_paths_of_an_exported_graph(exported):
    linear = next(n for n in snapshot(exported).nodes if "linear" in n.target)
    assert linear.target == "torch.ops.aten.linear.default"
    rows, columns = linear.shape
    assert (type(rows), columns, linear.dtype, linear.path) == (str, 8, "float32", "0")


def test_an_input_belongs_to_the_module_of_all_its_users(decoder):
    before, _ = decoder(2)
    paths = {n.name: n.path for n in before.nodes if n.is_input}
    assert paths["l_k_"] == "layers"
    assert next(path for name, path in paths.items() if "1_modules_attn_modules_o_proj" in name) == (
        "layers.1.attn.o_proj"
    )


@pytest.mark.parametrize(
    "raw",
    [
        "L['self'].layers.0.attn",
        "L['self'].layers[0].attn",
        "L['self']._modules['layers']._modules['0']._modules['attn']",
        "L['args'][0].layers.0.attn",
        "layers.0.attn",
    ],
)
def test_spells_a_module_path_one_way(raw):
    graph = fx.Graph()
    graph.call_function(torch.relu).meta["nn_module_stack"] = {
        "outer": ("L['self']", nn.Module),
        "a": (raw, nn.Module),
    }
    assert [node.path for node in snapshot(graph).nodes] == ["layers.0.attn"]


def test_takes_the_innermost_source_line():
    trace = '  File "a.py", line 3, in f\n    g(x)\n  File "b.py", line 70, in g\n    return x\n'
    assert source_line(node_with(stack_trace=trace)) == "b.py:70"
    assert source_line(node_with(stack_trace=None)) == ""


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (torch.reshape, "torch.reshape"),
        (torch.nn.functional.silu, "torch.nn.functional.silu"),
        (torch.ops.aten.mm.default, "torch.ops.aten.mm.default"),
        (int.__add__, "torch.int.__add__"),
        (object(), "builtins.object"),
        ("layers.0", "layers.0"),
    ],
)
def test_names_a_target_without_its_address(target, name):
    assert target_name(target) == name


def test_common_path_ends_where_modules_part():
    assert common_path(["layers.1.attn.o_proj", "", "layers.1.attn"]) == "layers.1.attn"
    assert common_path(["layers.1", "layers.11"]) == "layers"
    assert common_path([]) == ""


GOOD = {"name": "x", "op": "placeholder", "target": "x", "args": [], "shape": [1, "s0"], "dtype": "int8"}
GOOD |= {"path": "", "source": ""}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"shape": [1.5]}, 'node 0, "shape" is [1.5], required is null or a list of integers and strings'),
        ({"shape": [True]}, '"shape" is [True]'),
        ({"dtype": 3}, 'node 0, "dtype" is 3'),
        ({"args": [{"ref": 1}]}, 'node 0, "args"'),
        ({"args": [{"ref": "gone"}]}, "node 'x' reads 'gone', and no node has that name"),
        ({"name": None}, 'node 0, "name" is None, required is a string'),
        ({"extra": 1}, "node 0 must be an object with exactly the fields name, op,"),
    ],
)
def test_refuses_a_damaged_node(tmp_path, change, complaint):
    _write(tmp_path, {"format": "oproj_pass.graph_snapshot", "version": 1, "nodes": [{**GOOD, **change}]})
    with pytest.raises(ConfigError) as error:
        GraphSnapshot.load(tmp_path / "g.json")
    assert complaint in str(error.value)
    assert "g.json" in str(error.value)


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ([], "expected an object whose"),
        ({"format": "other"}, "expected an object whose"),
        ({"format": "oproj_pass.graph_snapshot", "version": 2}, "version 2; this release reads version 1"),
        ({"format": "oproj_pass.graph_snapshot", "version": 1}, '"nodes" must be a list'),
        ({"format": "oproj_pass.graph_snapshot", "version": 1, "nodes": [GOOD, GOOD]}, "both named 'x'"),
    ],
)
def test_refuses_a_file_that_is_no_snapshot(tmp_path, document, complaint):
    _write(tmp_path, document)
    with pytest.raises(ConfigError, match=complaint):
        GraphSnapshot.load(tmp_path / "g.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"], ids=["empty", "cut", "not UTF-8"])
def test_refuses_a_file_that_is_not_json(tmp_path, content):
    (tmp_path / "g.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"g\.json"):
        GraphSnapshot.load(tmp_path / "g.json")


def test_refuses_what_is_no_graph_and_says_how_to_read_a_file():
    gm = fx.symbolic_trace(lambda x: x)
    with pytest.raises(ConfigError, match=r"after: .* got str; read a saved graph with GraphSnapshot\.load"):
        diff_graphs(gm, "graph.json")


def _write(folder, document):
    (folder / "g.json").write_text(json.dumps(document))
