"""The page on covered models says what the tests of the finder test."""

import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_column(text):
    return re.findall(r"^\| (\w+) \|", text, re.MULTILINE)[1:]


@pytest.mark.parametrize("table", ["attention_table", "hybrid_table"])
def test_the_tables_are_what_the_tests_build(table):
    from tests.docs import coverage_tables

    assert getattr(coverage_tables, table)() in PAGE


def test_special_shapes_are_those_with_a_test_of_their_own():
    source = (ROOT / "tests/passes/sites/test_zoo_hybrids.py").read_text(encoding="utf-8")
    built = set(re.findall(r"transformers\.(\w+)Config\(|\.(\w+?)(?:Text)?(?:ForCausalLM)\._from", source))
    built = {"".join(names) for names in built}
    assert set(first_column(section("Special shapes"))) == built


def test_aten_families_are_those_with_a_test():
    source = (ROOT / "tests/passes/sites/test_zoo_aten.py").read_text(encoding="utf-8")
    tested = set(re.findall(r'"?(\w+)Config"?[,(]', source)) - {"Auto"}
    listed = re.search(r"one family of each form is tested: (.*?)\.", PAGE, re.DOTALL).group(1)
    assert set(re.findall(r"\w+", listed)) - {"and"} == tested


@pytest.mark.parametrize("title", ["What is left alone, and why", "MLPs, heads and embeddings"])
def test_every_reason_on_the_page_is_in_the_code(title):
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "passes").rglob("*.py"))
    reasons = first_cells("| reason |" + section(title).rpartition("\n| reason |")[2])
    assert len(reasons) > 10
    for reason in reasons:
        for part in re.split(r", (?=matches|writes|gates|is a|asks|sums)|\.\.\.|^has a result that ", reason):
            assert part.strip(" ,") in code, part


def first_cells(text):
    return re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)[1:]
