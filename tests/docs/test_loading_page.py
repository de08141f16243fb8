"""The page on loading: its example prints what it says, its table of formats is the tests' own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import formats
from tests.support.ranks import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "loading.md").read_text(encoding="utf-8")
SCRIPTS = re.compile(r"\$ cat > (\S+) <<'EOF'\n(.*?)\nEOF\n", re.DOTALL)
OUTPUT = re.compile(r"\$ torchrun --nproc-per-node 2 load_tiny\.py\n(.*?)```", re.DOTALL)


@pytest.mark.distributed
def test_the_example_prints_what_the_page_shows(tmp_path):
    pytest.importorskip("transformers")
    for name, code in SCRIPTS.findall(PAGE):
        (tmp_path / name).write_text(code)
    address = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    launch = ["-m", "torch.distributed.run", *address, "--nproc-per-node", "2"]
    run(tmp_path, "save_tiny.py")
    printed = run(tmp_path, *launch, "load_tiny.py")
    # torchrun runs Python unbuffered: one rank's line may end after the other's begins
    assert printed.replace("\n", "") == OUTPUT.search(PAGE)[1].replace("\n", "")


def run(folder, *arguments):
    result = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=250, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


NAMED = {
    "compressed-tensors W8A8": formats.ChannelInt8,
    "compressed-tensors `pack-quantized`": formats.PackQuantized,
    "the same, act-order": formats.PackQuantizedOrdered,
    "GPTQ": formats.GPTQ,
    "AWQ": formats.AWQ,
    "float8 blocks": formats.BlockFloat8,
}


def test_the_table_lists_every_format_that_is_tested():
    import torch

    rows = dict(re.findall(r"^\| ([^|]+) \| (`\w+`.*) \|$", PAGE, re.MULTILINE))
    del rows["dense"]
    assert set(NAMED.values()) == set(formats.FORMATS)
    assert rows.keys() == NAMED.keys()
    for name, kind in NAMED.items():
        cut, whole = (set(re.findall(r"`(\w+)`", cell)) for cell in rows[name].split("|"))
        assert cut == set(dict(kind.cut))
        assert cut | whole == set(dict(kind(torch.randn(16, 16)).named_parameters()))
