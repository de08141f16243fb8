import pytest

from oproj_pass.capture import StepBound, compare_coverage, plan_capture, vllm_ascend_sizes, vllm_sizes
from oproj_pass.capture.baselines import eager_requests, full_graph_sizes, runner_v1_sizes
from oproj_pass.errors import ConfigError


@pytest.fixture(params=["default", "explicit"])
def rows(request, vllm_rows, vllm_explicit_rows):
    return vllm_rows if request.param == "default" else vllm_explicit_rows


@pytest.fixture
def accepted(rows):
    return [row for row in rows if not row.refused]


def test_the_recorded_table_is_whole(vllm_rows, vllm_explicit_rows):
    assert len(vllm_rows) == 864
    assert sum(row.refused for row in vllm_rows) == 36
    assert len(vllm_explicit_rows) == 15


def test_reproduces_vllms_final_sizes(accepted):
    wrong = [row for row in accepted if vllm_sizes(row.bound, **row.user) != row.list("sizes")]
    assert wrong == []


def test_reproduces_runner_v2s_full_graphs_and_eager_batches(accepted):
    for row in accepted:
        full = full_graph_sizes(vllm_sizes(row.bound, **row.user), row.bound)
        assert full == row.list("v2_full"), row
        assert eager_requests(full, row.bound) == row.ranges("v2_eager_reqs"), row


def test_reproduces_runner_v1s_sizes_and_eager_batches(accepted):
    for row in accepted:
        sizes = runner_v1_sizes(vllm_sizes(row.bound, **row.user), row.bound)
        if "v1_error" in row.recorded:
            assert sizes == (), row
            continue
        assert sizes == row.list("v1_sizes"), row
        assert eager_requests(sizes, row.bound) == row.ranges("v1_eager_reqs"), row


def test_runner_v1_keeps_one_request_when_every_size_rounds_past_the_ceiling():
    assert runner_v1_sizes((9,), StepBound(16, 8192, 7)) == (8,)


def test_refuses_what_vllm_refuses(rows):
    for row in rows:
        if row.refused:
            with pytest.raises(ConfigError):
                plan_capture(row.bound, **row.user)


def test_default_plan_is_exactly_what_runner_v2_captures(vllm_rows):
    for row in vllm_rows:
        if not row.refused:
            assert plan_capture(row.bound, platform="cuda").sizes == row.list("v2_full"), row


def test_platform_changes_the_comparison_but_never_the_sizes(accepted):
    for row in accepted:
        npu = plan_capture(row.bound, **row.user, platform="npu")
        assert npu.sizes == plan_capture(row.bound, **row.user, platform="cuda").sizes, row


def test_every_batch_vllm_sends_to_eager_is_captured_or_warned_about(accepted):
    compared = {row: compare_coverage(row.bound, **row.user, platform="cuda") for row in accepted}
    for row, coverage in compared.items():
        assert coverage.engine_eager == row.ranges("v2_eager_reqs"), row
        warns = plan_capture(row.bound, **row.user).warning is not None
        assert warns == bool(coverage.plan_eager), row
        assert coverage.raised_eager == (), row


def test_misses_only_what_the_default_ceiling_cuts(vllm_rows):
    accepted = [row for row in vllm_rows if not row.refused]
    missing = [row for row in accepted if not plan_capture(row.bound).covers]
    assert missing == [row for row in accepted if row.recorded["v2_eager_reqs"]]
    assert len(missing) == 15
    assert all(row.bound.max_decode_tokens > 512 for row in missing)


def test_keeps_explicit_ceilings_that_vllm_truncates(vllm_explicit_rows):
    truncated = [
        row
        for row in vllm_explicit_rows
        if row.user["max_size"] and not row.refused and row.ranges("v2_eager_reqs")
    ]
    assert len(truncated) == 3
    for row in truncated:
        plan = plan_capture(row.bound, **row.user)
        assert plan.max_size == row.user["max_size"]
        assert plan.covers


@pytest.mark.parametrize(("query_len", "covered"), [(1, 35), (2, 50), (3, 15), (4, 49), (8, 48)])
def test_vllm_ascend_covers_few_batch_limits_and_the_plan_all(query_len, covered):
    bounds = [StepBound(seqs, 8192, query_len - 1) for seqs in range(1, 257)]
    engine = [vllm_ascend_sizes(bound)[-1] >= bound.max_num_seqs * query_len for bound in bounds]
    assert sum(engine) == covered
    within = [bound for bound in bounds if bound.max_decode_tokens <= 512]
    assert all(plan_capture(bound).covers for bound in within)
