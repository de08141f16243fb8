"""`oproj plan`: the planner's own answers, from options, from a file, or from both."""

import json

import pytest

from oproj_pass.capture import CapturePlan, StepBound, plan_capture

LIMITS = ("--max-num-seqs", 24, "--max-num-batched-tokens", 8192)


def planned(result):
    return CapturePlan.from_dict(json.loads(result.stdout))


def test_plans_from_options(oproj):
    result = oproj("plan", *LIMITS, "--num-speculative-tokens", 1, "--json")
    assert result.exit_code == 0
    assert planned(result) == plan_capture(StepBound(24, 8192, 1))


def test_plans_for_a_depth_that_changes(oproj):
    options = ["--num-speculative-tokens", 3, "--speculative-depths", "0,1,3", "--json"]
    assert planned(oproj("plan", *LIMITS, *options)) == plan_capture(StepBound(24, 8192, 3, (0, 1, 3)))


def test_numbers_may_be_readable(oproj):
    result = oproj("plan", "--max-num-seqs", 24, "--max-num-batched-tokens", "8k", "--json")
    assert planned(result) == plan_capture(StepBound(24, 8000))


def test_plans_from_a_deployment(oproj, decode_node):
    assert planned(oproj("plan", decode_node(), "--json")) == plan_capture(StepBound(24, 8192, 1))


def test_an_option_wins_over_the_file(oproj, decode_node):
    result = oproj("plan", decode_node(), "--max-num-seqs", 12, "--platform", "cuda", "--json")
    assert planned(result) == plan_capture(StepBound(12, 8192, 1), platform="cuda")


@pytest.mark.parametrize("sizes", [["1,2,24"], ["1 2 24"], ["1, 2, 24"], [1, 2, 24]])
def test_takes_the_users_sizes(oproj, sizes):
    result = oproj("plan", *LIMITS, "--cudagraph-capture-sizes", *sizes, "--json")
    assert planned(result) == plan_capture(StepBound(24, 8192), sizes=[1, 2, 24])


def test_takes_a_budget_and_a_histogram(oproj, tmp_path):
    observed = tmp_path / "steps.txt"
    observed.write_text("3\n3\n3\n20\n")
    result = oproj("plan", *LIMITS, "--budget", 2, "--histogram", observed, "--json")
    assert planned(result) == plan_capture(StepBound(24, 8192), budget=2, histogram={3: 3, 20: 1})


def test_says_why_each_size_is_there_and_how_to_set_it(oproj):
    result = oproj("plan", *LIMITS)
    plan = plan_capture(StepBound(24, 8192))
    for line in plan.explain():
        assert line in result.stdout
    assert f"--cudagraph-capture-sizes {' '.join(map(str, plan.sizes))}" in result.stdout


def test_takes_back_what_it_printed(oproj, tmp_path):
    plan = plan_capture(StepBound(24, 8192))
    text = oproj("plan", *LIMITS).stdout
    printed = text.rpartition("for vLLM: ")[2].split()
    assert planned(oproj("plan", *LIMITS, *printed, "--json")).sizes == plan.sizes
    saved = tmp_path / "plan.json"
    saved.write_text(oproj("plan", *LIMITS, "--json").stdout)
    assert oproj("plan", saved).stdout == text


NAMED = {"8": {"strategy": "row", "reduce": "scatter"}, "24": {"strategy": "row", "reduce": "exchange"}}


@pytest.mark.parametrize("document", [NAMED, {"model": "D", "recommendation": {"strategies": NAMED}}])
def test_takes_strategies_from_a_file_or_from_what_advise_printed(oproj, tmp_path, document):
    advice, saved = tmp_path / "advice.json", tmp_path / "plan.json"
    advice.write_text(json.dumps(document))
    plan = plan_capture(StepBound(24, 8192), strategies=NAMED)
    saved.write_text(oproj("plan", *LIMITS, "--strategies", advice, "--json").stdout)
    assert CapturePlan.from_dict(json.loads(saved.read_text())) == plan
    shown = oproj("plan", saved).stdout
    assert "24  exactly the largest possible decode step; strategy = row, reduce = exchange" in shown
    saved.write_text(oproj("plan", *LIMITS, "--json").stdout)
    assert planned(oproj("plan", saved, "--strategies", advice, "--json")) == plan


def test_refuses_strategies_of_advice_not_to_shard(oproj, tmp_path):
    advice = tmp_path / "advice.json"
    advice.write_text(json.dumps({"recommendation": {"strategies": {}}}))
    result = oproj("plan", *LIMITS, "--strategies", advice)
    assert result.exit_code == 2
    assert "recommends no sharding" in " ".join(result.stderr.split())


def test_reads_a_command_line(oproj):
    command = ["vllm", "serve", "model", "--max-num-seqs", 24, "--max-num-batched-tokens", "8k"]
    assert planned(oproj("plan", "--json", "--", *command)) == plan_capture(StepBound(24, 8000))


def test_exits_3_where_steps_would_run_eager(oproj):
    result = oproj("plan", *LIMITS, "--max-cudagraph-capture-size", 16)
    assert result.exit_code == 3
    assert "Raise max_cudagraph_capture_size to 24" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--max-num-seqs is missing"),
        (("--max-num-seqs", 24), "--max-num-batched-tokens is missing"),
        (("--max-num-seqs", 24, "--max-num-batched-tokens", 8), "below max_num_seqs"),
        ((*LIMITS, "--budget", 0), "budget=0 must be at least 1"),
        ((*LIMITS, "--cudagraph-capture-sizes", "1;2"), "is not a list of sizes"),
        ((*LIMITS, "--platform", "tpu"), "--platform"),
        ((*LIMITS, "--histogram", "nowhere.json"), "does not exist"),
        ((*LIMITS, "--strategies", "nowhere.json"), "does not exist"),
    ],
)
def test_exits_2_and_says_what_is_wrong(oproj, arguments, message):
    result = oproj("plan", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not result.stdout
