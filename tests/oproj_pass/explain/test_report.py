"""The report as data, text and HTML."""

import json

import pytest
import torch
from rich.console import Console

from oproj_pass.explanation import ExplainReport, GraphBreak, ProjectionRow, explain
from oproj_pass.explanation.render import format_nbytes
from oproj_pass.passes import NearMiss
from tests.support.models import decoder


def row(path="layers.0.attn.o_proj", **changes):
    facts = {
        "gemm": "linear", "out_features": 7168, "in_features": 16384, "dtype": "bfloat16", "scheme": "dense",
        "nbytes": 7168 * 16384 * 2, "input_itemsize": 2, "partial_itemsize": 2,
    }  # fmt: skip
    return ProjectionRow(path, **(facts | changes))


def report(*rows, size="auto", misses=(), breaks=()):
    return ExplainReport("Model", size, rows, misses, breaks, 1)


def text(shown, width=120):
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def test_prints_equal_layers_as_one_line():
    lines = text(report(*(row(f"layers.{i}.attn.o_proj") for i in range(61)))).splitlines()
    (line,) = [line for line in lines if "o_proj" in line]
    assert line.split()[0] == "layers.0-60.attn.o_proj"
    assert "bf16[7168, 16384]" in line


def test_prints_unequal_layers_apart():
    printed = text(report(row("layers.0.attn.o_proj"), row("layers.1.attn.o_proj", gemm="addmm")))
    assert "layers.0.attn.o_proj" in printed
    assert "layers.1.attn.o_proj" in printed


def test_lists_the_totals_of_every_size_that_fits():
    shown = report(row(in_features=4 * 1000))
    assert shown.sizes == (2, 4, 8)
    assert shown.fits(8)
    assert not report(row(in_features=4 * 1001)).fits(8)
    assert "N = 8 does not divide K = 4004" in text(report(row(in_features=4 * 1001)))


def test_a_size_fits_only_if_it_divides_every_layer():
    shown = report(row(in_features=12), row("other", in_features=16))
    assert shown.fitting_sizes == (2, 4)
    assert [misfit.path for misfit in shown.misfits(8)] == ["layers.0.attn.o_proj"]
    assert shown.to_dict()["sizes"]["8"] == {"fits": False}


@pytest.mark.parametrize("size", [0, 1])
def test_says_that_these_sizes_shard_nothing(size):
    assert f"oproj_tensor_parallel_size = {size} shards nothing" in text(report(row(), size=size))


def test_says_that_there_is_nothing_to_shard():
    empty = report()
    assert "Nothing to shard" in text(empty)
    assert not any(map(empty.fits, empty.sizes))
    assert empty.fitting_sizes == ()


def test_shows_reasons_and_breaks():
    miss = NearMiss("layers.1.attn", "has a result that is not used", 2**20)
    printed = text(report(row(), misses=(miss,), breaks=(GraphBreak("print()", "model.py:7"),) * 3))
    assert "has a result that is not used" in printed
    assert "model.py:7" in printed
    assert "3 graph break(s)" in printed


def test_never_reads_a_name_as_markup():
    hostile = report(row("[red]<b>&"), misses=(NearMiss("<script>", "[bold]<i>"),))
    assert "[red]<b>&" in text(hostile)
    page = hostile._repr_html_()
    assert "<script>" not in page
    assert "[red]&lt;b&gt;&amp;" in page


def test_gives_the_same_facts_as_json():
    shown = explain(decoder(layers=2), torch.randn(5, 32), config={"oproj_tensor_parallel_size": 4})
    data = json.loads(json.dumps(shown.to_dict()))
    assert data["oproj_tensor_parallel_size"] == 4
    assert data["sizes"]["4"]["saved_nbytes"] == shown.saved_nbytes(4) == 2 * 32 * 32 * 3
    assert [entry["path"] for entry in data["projections"]] == [r.path for r in shown.projections]
    assert all(set(entry["sent_nbytes_per_token"]) == {"4"} for entry in data["projections"])


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (3072, "3.0 KiB"), (7 * 2**20, "7.0 MiB"), (7168 * 16384, "0.109 GiB")],
)
def test_prints_bytes_in_units_that_fit(nbytes, shown):
    assert format_nbytes(nbytes) == shown
