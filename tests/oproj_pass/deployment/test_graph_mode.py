from pathlib import Path

import pytest

from oproj_pass.deployment import CUDAGraphMode, Deployment
from oproj_pass.deployment.table import graph_mode_page

PAGE = Path(__file__).parents[3] / "docs" / "graph_modes.md"


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "FULL_AND_PIECEWISE"),
        ({"cudagraph_mode": "full_decode_only"}, "FULL_DECODE_ONLY"),
        ({"cudagraph_mode": "FULL", "enforce_eager": True}, "NONE"),
        ({"compilation_config": {"mode": 0}}, "NONE"),
        ({"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_AND_PIECEWISE"}}, "NONE"),
        ({"compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}}, "FULL_DECODE_ONLY"),
        ({"compilation_config": {"mode": 3, "backend": "eager"}}, "FULL_AND_PIECEWISE"),
        ({"compilation_config": 3}, "FULL_AND_PIECEWISE"),
        ({"compilation_config": {"mode": "DYNAMO_TRACE_ONCE", "cudagraph_mode": "FULL"}}, "NONE"),
        ({"compilation_config": {"mode": 2, "cudagraph_mode": "FULL"}, "device_type": "cuda"}, "FULL"),
    ],
)
def test_the_mode_left_after_the_platform(fields, mode):
    assert Deployment(**fields).effective_cudagraph_mode is CUDAGraphMode[mode]


@pytest.mark.parametrize("mode", [1, 2])
def test_a_backend_of_our_own_is_refused_where_the_platform_drops_it(check, mode):
    """vllm-ascend turns mode=2, backend="oproj_npu" into mode NONE and starts."""
    report = check(compilation_config={"mode": mode, "backend": "oproj_npu"}, cudagraph_mode=None)
    (finding,) = report.errors
    assert (finding.rule, finding.field) == (8, "compilation_config.mode")
    assert "oproj_npu" in finding.remedy
    assert report.cudagraph_mode is CUDAGraphMode.NONE


def test_the_page_in_the_docs_is_what_the_rules_say():
    assert PAGE.read_text(encoding="utf-8") == graph_mode_page(), (
        "run python -m oproj_pass.deployment.table > docs/graph_modes.md"
    )


def test_the_page_has_every_combination():
    rows = [
        line
        for line in graph_mode_page().splitlines()
        if line.startswith("| ") and "cudagraph_mode" not in line
    ]
    assert len(rows) == len(CUDAGraphMode) * 2 * 2
    assert len(set(rows)) == len(rows)
