import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.deployment import Severity

DEFAULT_CEILING = 512


def test_turns_the_knob_off_with_a_warning_and_starts(check, caplog):
    with caplog.at_level(logging.WARNING, logger="oproj_pass"):
        report = check(max_num_seqs=600)
    assert report.ok
    (finding,) = report.findings
    assert (finding.rule, finding.severity, finding.value) == (13, Severity.WARNING, 512)
    assert report.oproj_tensor_parallel_size == 0
    for part in ("512", "600", "max_cudagraph_capture_size"):
        assert part in finding.message
        assert part in caplog.text


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_seqs": 600, "max_cudagraph_capture_size": 600},
        {"max_num_seqs": 600, "cudagraph_capture_sizes": [1, 8, 600]},
        {"max_num_seqs": 600, "max_num_batched_tokens": 600, "max_cudagraph_capture_size": 600},
        {"max_num_seqs": 12},
        {"max_num_seqs": 12, "cudagraph_capture_sizes": [16, 8]},
        {"max_num_seqs": 100, "num_speculative_tokens": 1, "cudagraph_capture_sizes": [1, 3, 200]},
        {"max_num_seqs": 100},
        {"max_num_seqs": 6, "num_speculative_tokens": 6, "max_num_batched_tokens": 64},
        {"max_num_seqs": 6, "num_speculative_tokens": 6, "max_num_batched_tokens": 41},
    ],
)
def test_keeps_the_knob_when_the_largest_step_is_captured(check, changes):
    report = check(**changes)
    assert report.findings == ()
    assert report.oproj_tensor_parallel_size == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_seqs": 8, "cudagraph_capture_sizes": [3]},
        {"max_num_seqs": 8, "cudagraph_capture_sizes": []},
        # odd sizes with drafts: 1, 3, 5 become 2, 4, 6 and 199 is rounded past the ceiling
        {"max_num_seqs": 99, "num_speculative_tokens": 1, "cudagraph_capture_sizes": [1, 3, 5, 199]},
        # sizes above the token limit are dropped, not lowered to it
        {"max_num_seqs": 64, "max_num_batched_tokens": 64, "cudagraph_capture_sizes": [8, 128]},
        {"max_num_seqs": 64, "max_num_batched_tokens": 64, "cudagraph_capture_sizes": [128]},
        {"max_num_seqs": 100, "max_cudagraph_capture_size": 99},
        {"max_num_seqs": 8, "max_cudagraph_capture_size": 0},
        {"max_num_seqs": 8, "num_speculative_tokens": 3, "max_cudagraph_capture_size": 2},
        {"max_num_seqs": 512, "num_speculative_tokens": 1},
    ],
)
def test_judges_the_sizes_that_were_given(check, changes):
    report = check(**changes)
    assert [finding.rule for finding in report.findings] == [13]
    assert report.oproj_tensor_parallel_size == 0


@pytest.mark.parametrize("size", [0, 1])
def test_exempts_a_size_that_exchanges_nothing(check, size):
    report = check(size=size, max_num_seqs=600)
    assert report.findings == ()
    assert report.oproj_tensor_parallel_size == size


def test_leaves_graph_mode_none_to_rule_8(check):
    """A larger ceiling would not help where nothing is captured."""
    assert [finding.rule for finding in check(max_num_seqs=600, enforce_eager=True).findings] == [8]


@given(
    seqs=st.integers(1, 700),
    extra_tokens=st.integers(0, 2000),
    drafts=st.integers(0, 7),
    ceiling=st.none() | st.integers(0, 800),
)
def test_keeps_the_knob_iff_the_largest_step_fits_under_the_ceiling(
    check, seqs, extra_tokens, drafts, ceiling
):
    tokens = seqs + extra_tokens
    largest_step = min(tokens, seqs * (1 + drafts))
    report = check(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        num_speculative_tokens=drafts,
        max_cudagraph_capture_size=ceiling,
    )
    fits = largest_step <= (DEFAULT_CEILING if ceiling is None else ceiling)
    assert report.ok
    assert report.oproj_tensor_parallel_size == (8 if fits else 0)
    assert len(report.warnings) == (not fits)
