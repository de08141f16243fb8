"""`oproj diff`: two saved graphs, or a model before and after sharding."""

import json

import pytest
import torch
from typer.testing import CliRunner

from oproj_pass.cli import app
from oproj_pass.explanation.rewrite import rewrite_graph
from oproj_pass.passes.diff import compare_states, diff_graphs
from tests.support.models import decoder


@pytest.fixture(scope="module")
def states():
    history = rewrite_graph(decoder(layers=2), torch.randn(5, 32), size=4)
    return history.state(0), history.state(1)


@pytest.fixture
def saved(states, tmp_path):
    paths = tmp_path / "before.json", tmp_path / "after.json"
    for graph, path in zip(states, paths, strict=True):
        graph.save(path)
    return paths


def test_prints_the_diff_of_two_snapshots(oproj, states, saved):
    result = oproj("diff", *saved)
    assert result.exit_code == 0
    assert result.stdout == diff_graphs(*states).to_text()


@pytest.mark.parametrize(("which", "status"), [((0, 1), 1), ((0, 0), 0)], ids=["differ", "equal"])
def test_says_by_its_exit_code_whether_graphs_differ_when_asked(oproj, saved, which, status):
    assert oproj("diff", *(saved[i] for i in which), "--exit-code", "--json").exit_code == status


def test_colours_added_and_removed_lines_on_a_terminal(saved):
    shown = CliRunner().invoke(app, ["diff", *map(str, saved)], color=True).stdout.splitlines()
    colours = {line[:5] for line in shown if line.startswith("\x1b") and line[5:6] in "+-"}
    assert colours >= {"\x1b[32m", "\x1b[31m"}


def test_exits_0_for_equal_graphs(oproj, saved):
    result = oproj("diff", saved[0], saved[0])
    assert result.exit_code == 0
    assert result.stdout.startswith("no difference")


def test_prints_the_counts_as_json(oproj, states, saved):
    assert json.loads(oproj("diff", *saved, "--json").stdout) == diff_graphs(*states).summary()


def test_writes_one_page(oproj, states, saved, tmp_path):
    page = tmp_path / "page.html"
    result = oproj("diff", *saved, "--html", page)
    assert result.exit_code == 0
    assert not result.stdout
    assert result.stderr == f"wrote {page}: open it in a browser\n"
    assert page.read_text(encoding="utf-8") == diff_graphs(*states).to_html()


def test_compares_a_model_before_and_after(oproj, llama):
    pytest.importorskip("transformers")
    result = oproj("diff", "--model", llama(), "--oproj-tensor-parallel-size", 4, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["collectives"] == {
        name: {"before": 0, "after": 2} for name in ("all_to_all_single", "reduce_scatter_tensor")
    }


def test_refuses_a_size_that_does_not_divide(oproj, llama):
    pytest.importorskip("transformers")
    result = oproj("diff", "--model", llama(), "--oproj-tensor-parallel-size", 3)
    assert result.exit_code == 2
    assert "K = 32 input features cannot be split" in result.stderr


def test_refuses_a_file_that_is_no_snapshot(oproj, llama):
    result = oproj("diff", llama(), llama())
    assert result.exit_code == 2
    assert "not a graph snapshot" in result.stderr


def test_refuses_a_page_where_no_file_can_be(oproj, saved, tmp_path):
    result = oproj("diff", *saved, "--html", tmp_path / "nowhere" / "page.html")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr


def test_shows_more_than_two_states_side_by_side(oproj, states, saved, tmp_path):
    third = tmp_path / "third.json"
    states[1].save(third)
    result = oproj("diff", *saved, third, "--exit-code")
    assert result.exit_code == 1
    assert result.stdout == compare_states([*states, states[1]], ["before", "after", "third"]).to_text()
    assert oproj("diff", *saved, third, "--check", third).exit_code == 2


@pytest.mark.parametrize("given", [(), ("one",), ("both", "and a model")])
def test_refuses_anything_but_snapshots_or_a_model(oproj, saved, llama, given):
    arguments = {0: (), 1: (saved[0],), 2: (*saved, "--model", llama())}[len(given)]
    result = oproj("diff", *arguments)
    assert result.exit_code == 2
    assert "two snapshots or more, or --model alone" in " ".join(result.stderr.split())
