"""`explain` and `advise` answer from what an earlier run found, exactly as that run did."""

import json
import subprocess
import sys

import pytest

from oproj_pass.cli import traced
from oproj_pass.explanation import ExplainReport, GraphBreak, ProjectionRow
from oproj_pass.passes import NearMiss

pytest.importorskip("transformers")

REPORT = ExplainReport(
    "Model",
    "auto",
    (
        ProjectionRow("a.o_proj", "linear", 8, 16, "bfloat16", "dense", 256, 2, 4, product_itemsize=2),
        ProjectionRow(
            "b.o_proj", "linear", 8, 16, "int8", "w8a8", 128, 1, 2, None, 4, 2, 8, 3, "a.o_proj", "grid",
            (2, 4), 4, "mlp", 16, 8, 32, True,
        ),
    ),
    (NearMiss("c", "is read twice", 12, True, "lmhead"),),
    (GraphBreak("print()", "model.py:7"),),
    2,
    {"mlp": "auto", "lmhead": 4},
)  # fmt: skip


class Config:
    def to_dict(self):
        return {"num_hidden_layers": 2, "dtype": "bfloat16"}


def test_a_kept_report_is_the_one_that_was_found():
    found = traced._load(traced._dump(REPORT, Config()))
    assert found.report == REPORT
    assert found.report.to_dict() == REPORT.to_dict()
    assert found.facts == Config().to_dict()


@pytest.fixture
def built(monkeypatch):
    """The models that were built."""
    paths = []
    build_model = traced.build_model

    def build(path, dtype):
        paths.append(path)
        return build_model(path, dtype)

    monkeypatch.setattr(traced, "build_model", build)
    return paths


def test_the_same_question_is_answered_alike_without_a_model(oproj, llama, built):
    path = llama()
    answers = [oproj("advise", path, "--machine", "a2", "--json") for _ in range(2)]
    assert len(built) == 1
    assert answers[0].stdout == answers[1].stdout
    assert answers[0].exit_code == answers[1].exit_code == 1
    other = json.loads(oproj("advise", path, "--machine", "h200", "--batch", 8, "--json").stdout)
    assert other["setting"]["batch"] == 8
    assert len(built) == 1, "a machine and a batch need no trace"


def test_another_config_or_option_is_traced(oproj, llama, built):
    sizes = []
    for changes, options in (({}, ()), ({"hidden_size": 64}, ()), ({}, ("--exclude", "model.layers.0.*"))):
        report = json.loads(oproj("explain", llama(**changes), *options, "--json").stdout)
        sizes.append(report["full_nbytes"])
    assert len(built) == len(set(sizes)) == 3


def test_no_cache_neither_reads_nor_keeps(oproj, llama, built):
    path = llama()
    for options in (("--no-cache",), (), ("--no-cache",)):
        assert oproj("explain", path, *options).exit_code == 0
    assert len(built) == 3


def test_a_kept_answer_loads_neither_torch_nor_transformers(oproj, llama, tmp_path):
    path = str(llama())
    questions = [["explain", path], ["explain", path, "--dtype", "fp8", "--json"]]
    questions += [["advise", path, "--machine", "a2", "--html", str(tmp_path / "page.html")]]
    expected = "".join(oproj(*question).stdout for question in questions)
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"  # where the same is installed
        "from oproj_pass.cli import app\n"
        f"for question in {questions!r}:\n"
        "    app(question, standalone_mode=False)\n"
        "sys.exit(' '.join({'torch', 'transformers', 'networkx'} & sys.modules.keys()))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == expected
    assert result.stderr.replace(f"wrote {tmp_path}/page.html: open it in a browser", "").strip() == ""
