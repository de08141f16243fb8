import doctest
from pathlib import Path

from oproj_pass.capture import compare_coverage

PAGE = Path(__file__).parents[2] / "docs" / "capture.md"


def ranges(pairs):
    return ", ".join(f"{low}-{high}" for low, high in pairs) or "none"


def test_every_snippet_prints_what_the_page_says():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted > 20
    assert result.failed == 0


def test_the_table_lists_every_row_that_vllm_sends_to_eager(vllm_rows, vllm_explicit_rows):
    expected = []
    for row in [*vllm_rows, *vllm_explicit_rows]:
        if row.refused or not row.recorded["v2_eager_reqs"]:
            continue
        coverage = compare_coverage(row.bound, **row.user, platform="cuda")
        setting = " ".join(f"`{name}={value}`" for name, value in row.user.items() if value) or "none"
        cells = [row.bound.max_num_seqs, row.bound.decode_query_len, row.bound.max_decode_tokens, setting]
        cells += map(ranges, (coverage.engine_eager, coverage.plan_eager, coverage.raised_eager))
        expected.append("| " + " | ".join(map(str, cells)) + " |")
    table = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "][1:]
    assert len(expected) == 20
    assert table == expected
