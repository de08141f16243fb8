import pytest

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.errors import ConfigError


@pytest.mark.parametrize(
    ("seqs", "tokens", "drafts", "largest"),
    [
        (6, 64, 6, 42),  # vllm#54933: the grid truncates 42 to 40
        (6, 41, 6, 41),  # the same, cut by the token limit
        (100, 8192, 0, 100),  # vllm#57355: 97 to 100 requests leave the graphs
        (77, 8192, 0, 77),  # vllm-ascend#16049
        (12, 8192, 0, 12),
        (3, 8192, 0, 3),
        (1, 8192, 2, 3),
        (20, 8192, 0, 20),
        (14, 8192, 2, 42),  # vllm-ascend#3909: a size that is not whole requests
    ],
)
@pytest.mark.parametrize("platform", ["npu", "cuda"])
def test_captures_the_largest_step_exactly(seqs, tokens, drafts, largest, platform):
    plan = plan_capture(StepBound(seqs, tokens, drafts), platform=platform)
    assert plan.max_size == largest
    assert plan.covers
    assert plan.warning is None


def test_default_grid_steps_by_8_below_256_and_by_16_from_there():
    plan = plan_capture(StepBound(300, 8192))
    assert plan.sizes == (1, 2, 4, *range(8, 256, 8), 256, 272, 288, 300)


@pytest.mark.parametrize(("max_size", "seqs"), [(100, 100), (42, 42), (600, 600), (42, 100)])
def test_never_truncates_an_explicit_ceiling(max_size, seqs):
    assert plan_capture(StepBound(seqs, 8192), max_size=max_size).max_size == max_size


def test_a_ceiling_within_a_request_ends_at_the_last_whole_one():
    plan = plan_capture(StepBound(100, 8192, 3), max_size=42)
    assert plan.max_size == 40
    assert not plan.covers


def test_a_ceiling_above_the_largest_step_adds_no_unreachable_size():
    assert plan_capture(StepBound(12, 8192), max_size=512).sizes == (1, 2, 4, 8, 12)


@pytest.mark.parametrize(
    ("limits", "asked", "planned"),
    [
        ((100, 8192, 0), [100, 8, 8, 1], (1, 8, 100)),
        ((100, 8192, 0), [1, 2, 4, 8], (1, 2, 4, 8)),
        ((100, 8192, 1), [1, 3, 5, 199], (2, 4, 6, 200)),  # runner V2 keeps 2, 4 and 6 only
        ((16, 8192, 7), [4], (8,)),  # runner V1 refuses to start, V2 captures nothing
        ((6, 8192, 0), [1, 8], (1, 6)),  # 8 can never be dispatched
        ((6, 41, 6), [42], (41,)),
    ],
)
def test_keeps_a_users_list_up_to_what_was_asked(limits, asked, planned):
    assert plan_capture(StepBound(*limits), sizes=asked).sizes == planned


def test_does_not_extend_a_users_list_past_its_largest_size():
    plan = plan_capture(StepBound(100, 8192), sizes=[1, 2, 4, 8])
    assert not plan.covers
    assert "9 to 100" in plan.warning


def test_warns_with_both_numbers_and_the_setting_to_raise():
    plan = plan_capture(StepBound(600, 8192))
    assert not plan.covers
    for part in ("512", "600", "max_cudagraph_capture_size", "cudagraph_capture_sizes"):
        assert part in plan.warning
    assert plan_capture(StepBound(600, 8192), max_size=600).covers


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": []}, "sizes is empty"),
        ({"sizes": [0, 1]}, "sizes=0 must be at least 1"),
        ({"sizes": [1, 2.0]}, "sizes=2.0 must be an integer"),
        ({"sizes": [1, 8], "max_size": 16}, "max_size=16 and the largest of sizes, 8, disagree"),
        ({"max_size": 0}, "max_size=0 must be at least 1"),
        ({"max_size": True}, "max_size=True must be an integer"),
        ({"max_size": 3}, "max_cudagraph_capture_size=3 is below the 4 tokens of one decode request"),
        ({"budget": 0}, "budget=0 must be at least 1"),
        ({"platform": "tpu"}, "platform='tpu' is unknown"),
        ({"histogram": {}}, "no step of 1 to 32 tokens"),
    ],
)
def test_refuses_settings_that_cannot_be_planned(settings, message):
    with pytest.raises(ConfigError, match=message):
        plan_capture(StepBound(8, 64, 3), **settings)


def test_a_list_and_a_ceiling_that_agree_are_accepted():
    assert plan_capture(StepBound(16, 64), sizes=[1, 16], max_size=16).sizes == (1, 16)
