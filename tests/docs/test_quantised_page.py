"""The page on quantised projections: its snippets print what it says, its tables are the code's."""

import contextlib
import io
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from oproj_pass.errors import ConfigError
from oproj_pass.passes import Exchange, ShardOProj, run_passes
from oproj_pass.passes.gemm.schemes import SCHEMES
from oproj_pass.passes.gemm.schemes.weight_only_fused import PREPACKED
from tests.support.fake import fake_world

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quantised.md").read_text(encoding="utf-8")
SNIPPET = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.fixture(scope="module")
def namespace():
    """What the snippets define; the table is as it was afterwards."""
    before, printed = dict(SCHEMES), []
    module = sys.modules["quantised_page"] = ModuleType("quantised_page")  # Dynamo looks globals up in it
    names = vars(module)
    for code, _ in SNIPPET.findall(PAGE):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, names)
        printed.append(out.getvalue())
    SCHEMES.clear()
    SCHEMES.update(before)
    yield names, printed
    del sys.modules["quantised_page"]


def test_every_snippet_prints_what_the_page_says(namespace):
    expected = [output for _, output in SNIPPET.findall(PAGE)]
    assert len(expected) == 2
    assert namespace[1] == expected


def test_the_refusal_is_the_real_one(namespace):
    names, _ = namespace
    program = torch.export.export(names["Attention"](names["Int4Linear"]), (torch.randn(4, 512),))
    signature = program.graph_signature
    parameters = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    with fake_world(32) as name, pytest.raises(ConfigError) as refused:
        run_passes(program.graph_module, (), [ShardOProj(Exchange(32, name), parameters=parameters)])
    assert f"```text\n0.{refused.value}\n```" in PAGE


def test_the_table_names_every_operator_that_is_taken():
    table = PAGE.partition("| operator |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+::\w+)`", table)) == SCHEMES.keys() - set(PREPACKED)


def test_every_reason_on_the_page_is_in_the_code():
    sources = [*(ROOT / "passes").rglob("*.py"), *(ROOT / "oproj_pass").rglob("*.py")]
    code = " ".join(path.read_text(encoding="utf-8") for path in sources)
    code = re.sub(r'"\s*f?"', "", code).replace("{step.axis.name}", "K")
    reasons = re.findall(r"^\| ([^|]+) \|", section("What is left alone"), re.MULTILINE)[1:]
    assert len(reasons) > 8
    assert [reason for reason in reasons if reason.strip() not in code] == []
