"""The page on loading: its example prints what it says, its table of formats is the tests' own."""

import re
import runpy
from pathlib import Path

import pytest
import torch

from tests.support import formats
from tests.support.scripts import run_script

PAGE = (Path(__file__).parents[2] / "docs" / "loading.md").read_text(encoding="utf-8")
SCRIPTS = re.compile(r"\$ cat > (\S+) <<'EOF'\n(.*?)\nEOF\n", re.DOTALL)
OUTPUT = re.compile(r"\$ torchrun --nproc-per-node 2 load_tiny\.py\n(.*?)```", re.DOTALL)


@pytest.mark.distributed
def test_the_example_prints_what_the_page_shows(two_ranks, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    for name, code in SCRIPTS.findall(PAGE):
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        runpy.run_path("save_tiny.py", run_name="__main__")
    done = run_script(two_ranks, tmp_path, "load_tiny.py")
    assert done.status == 0, done.stderr
    assert done.stdout == OUTPUT.search(PAGE)[1]


NAMED = {
    "compressed-tensors W8A8": formats.ChannelInt8,
    "compressed-tensors `pack-quantized`": formats.PackQuantized,
    "the same, act-order": formats.PackQuantizedOrdered,
    "GPTQ": formats.GPTQ,
    "AWQ": formats.AWQ,
    "float8 blocks": formats.BlockFloat8,
}


def test_the_table_lists_every_format_that_is_tested():
    rows = dict(re.findall(r"^\| ([^|]+) \| (`\w+`.*) \|$", PAGE, re.MULTILINE))
    del rows["dense"]
    assert set(NAMED.values()) == set(formats.FORMATS)
    assert rows.keys() == NAMED.keys()
    for name, kind in NAMED.items():
        cut, whole = (set(re.findall(r"`(\w+)`", cell)) for cell in rows[name].split("|"))
        assert cut == set(dict(kind.cut))
        assert cut | whole == set(dict(kind(torch.randn(16, 16)).named_parameters()))
