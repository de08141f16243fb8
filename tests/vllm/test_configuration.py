"""Rules, caches and guard on real VllmConfig and dispatcher objects, on a platform with graphs."""

import pytest

from tests.support.workers import Worker
from tests.vllm.support import configuration, scheduling


def in_process(function, *args):
    worker = Worker(_serve)
    try:
        worker.send((function, args))
        kind, value = worker.receive(240)
    finally:
        worker.kill()
    if kind != "result":
        pytest.fail(f"{function.__name__}: {value}", pytrace=False)
    return value


def _serve(connection):
    import traceback

    function, args = connection.recv()
    try:
        connection.send(("result", function(*args)))
    except BaseException:  # whatever it is, the test shows it
        connection.send(("error", traceback.format_exc()))
    connection.poll(None)


def every_fact(model):
    return {
        "hooks": configuration.hook_facts(),
        "rules": configuration.rule_facts(model),
        "guard": configuration.guard_facts(model),
        "head": configuration.head_facts(model),
        "preemption": scheduling.preemption_facts(model),
        "asynchronous": scheduling.asynchronous_facts(model),
        "depths": scheduling.depths_by_batch_size(model),
    }


@pytest.fixture(scope="module")
def facts(checkpoints):
    return in_process(every_fact, checkpoints["qwen3_moe"])


@pytest.fixture
def rules(facts):
    return facts["rules"]


@pytest.fixture
def guard(facts):
    return facts["guard"]


@pytest.fixture
def head(facts):
    return facts["head"]


def test_registers_once_however_often_it_is_called(facts):
    assert facts["hooks"] == {"wrapped": [True] * 8, "same": [True] * 8}


def test_a_decode_node_that_keeps_the_rules_is_on(rules):
    settings = rules["decode node"]["settings"]
    assert (settings.sizes["oproj"], settings.capacity, settings.load_sharded) == (2, None, True)


def test_every_size_reaches_the_plugin(rules):
    settings = rules["every size"]["settings"]
    assert settings.sizes == {"oproj": 2, "mlp": 4, "lmhead": 2, "embedding": 2}
    assert settings.sampled_rows == 16  # max_num_seqs
    assert all("neither dense layers nor shared" in line for line in rules["logged with every size"])


def test_auto_is_a_number_before_anything_reads_it(rules):
    section = rules["auto"]["additional"]["finegrained_tp_config"]
    assert rules["auto"]["settings"].sizes["oproj"] == section["oproj_tensor_parallel_size"] == 4
    assert rules["logged with auto"] == []


def test_auto_asks_the_advisor_where_the_machine_is_known(rules):
    assert rules["auto on a2"]["settings"].sizes["oproj"] == 2
    (line,) = [line for line in rules["logged with auto on a2"] if "auto takes" in line]
    assert "a2: a step of 16 tokens is predicted to change by N = 2: +" in line


def test_the_lm_head_needs_no_uniform_steps(rules):
    assert rules["lmhead, eager, no kv transfer"]["settings"].sizes["lmhead"] == 2


@pytest.mark.parametrize("case", ["no knob", "knob 0", "knob null", "adapters, knob 0"])
def test_is_silent_with_the_knob_off(rules, case):
    assert rules[case]["settings"] is None
    assert "oproj_pass" not in rules[case]["additional"]
    assert rules["logged before"] == []


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("no kv transfer, tp 2", ["rule 2", "rule 4", "rule 10"]),
        ("not a size", ["rule 1"]),
        ("a size that is not built", ["rule 18", "olora_tensor_parallel_size"]),
        ("lmhead, drafts of a model", ["rule 23", "draft_model"]),
        ("lmhead, runner V2", ["lmhead_tensor_parallel_size=2 with model runner V2"]),
        ("a misspelled knob", ["rule 1", "did you mean 'oproj_tensor_parallel_size'"]),
        ("unknown option", ["capcity", "capacity"]),
        ("small capacity", ["capacity is 512", "8192"]),
        ("eager", ["rule 8"]),
        ("adapters", ["oproj_tensor_parallel_size=2 with enable_lora"]),
        ("compilation dropped", ["mode 2", "oproj_npu", "ConfigPlatform turned it into mode 0"]),
        ("graphs dropped", ["rule 8"]),
    ],
)
def test_refuses_with_every_finding(rules, case, found):
    for text in found:
        assert text in rules[case]["error"]


def test_a_fixed_capacity_makes_the_rules_of_uniform_steps_moot(rules):
    assert rules["capacity, no kv transfer"]["settings"].capacity == 8192


def test_rule_13_turns_the_sizes_of_uniform_steps_off_together_with_its_warning(rules):
    remaining = {"oproj": 0, "mlp": 0, "embedding": 0, "lmhead": 2}
    uncovered = rules["uncovered"]
    assert uncovered["settings"].sizes == remaining
    written = {f"{role}_tensor_parallel_size": size for role, size in remaining.items()}
    assert uncovered["additional"]["finegrained_tp_config"] == written
    (warning,) = [line for line in rules["logged when uncovered"] if "rule 13" in line]
    assert "600" in warning


@pytest.mark.parametrize("other", ["n4", "capacity 8192", "capacity 8200", "another pass"])
def test_the_key_of_the_compile_caches_changes(rules, other):
    assert rules["keys"][other] != rules["keys"]["n2"]


def test_the_key_of_the_compile_caches_is_stable(rules):
    assert rules["keys"]["n2 again"] == rules["keys"]["n2"]
    assert rules["keys"]["capacity 8192"] != rules["keys"]["capacity 8200"]


@pytest.mark.parametrize("runner", ["first", "second"])
def test_lets_a_step_pass_that_the_dispatcher_sends_to_a_graph(guard, runner):
    steps = guard if runner == "first" else guard["second runner"]
    assert steps["decode"] == ("FULL", "ran")


@pytest.mark.parametrize("runner", ["first", "second"])
@pytest.mark.parametrize("step", ["oversize", "mixed"])
def test_refuses_a_step_that_the_dispatcher_sends_to_none(guard, runner, step):
    steps = guard if runner == "first" else guard["second runner"]
    mode, what = steps[step]
    assert mode == "NONE"
    assert what.startswith("EagerStepError: a step of")


@pytest.mark.parametrize(
    "step", ["profile run", "capture warm-up", "draft after decode", "step after a refusal"]
)
def test_lets_pass_what_is_no_target_forward_of_a_real_step(guard, step):
    assert guard[step][1] == "ran"


@pytest.mark.parametrize("why", ["knob 0", "capacity"])
def test_does_not_guard_where_rows_cannot_differ(guard, why):
    assert guard[f"oversize, {why}"] == ("NONE", "ran")


def test_the_lm_head_is_called_with_as_many_rows_on_an_idle_rank_as_on_a_busy_one(head):
    busy, idle = head["called with"]
    assert busy == [[1, 1]] * 3 + [[0, 0]]
    assert idle == [[0, 0]] * 4  # none of the last step's rows
    assert head["three rows"] == [[2, 2]] * 3


def test_refuses_more_rows_than_a_step_samples(head):
    assert head["five rows"].startswith("ConfigError: lmhead_tensor_parallel_size=2: a call of the LM head")


def test_says_so_when_there_is_no_lm_head_to_share(head):
    assert "SimpleNamespace computes no logits" in head["no logits"]
    assert head["never called"].startswith(
        "SiteMismatchError: lmhead_tensor_parallel_size=2, but the profile"
    )


def test_a_decode_node_that_splits_decides_over_preempted_requests(facts):
    assert facts["preemption"]["decode node"] == 2


@pytest.mark.parametrize(
    "case",
    ["knob 0", "size 1", "lmhead alone", "prefills itself", "no kv transfer", "recomputing, knob 0"],
)
def test_preemption_stays_vllms_own_elsewhere(facts, case):
    assert facts["preemption"][case] is None


def test_the_asynchronous_scheduler_resumes_what_was_offloaded(facts):
    preempted, ends, answers = facts["asynchronous"]["room"]
    assert preempted
    assert set(ends.values()) == {("length", None)}
    assert set(answers.values()) == {40}


def test_the_asynchronous_scheduler_aborts_what_was_not_and_lets_the_others_live(facts):
    preempted, ends, answers = facts["asynchronous"]["none"]
    assert 0 < len(preempted) < len(ends) == 3
    for name, (finish, stop) in ends.items():
        if name in preempted:
            assert finish == "error"
            assert f"request {name} was preempted and its KV cache could not be offloaded" in stop
            assert answers[name] < 40
        else:
            assert (finish, stop, answers[name]) == ("length", None, 40)


def test_refuses_to_recompute_behind_the_policy_what_fails_to_load(facts):
    refusal = facts["preemption"]["recomputing"]
    assert "kv_transfer_config.kv_load_failure_policy is 'recompute'" in refusal


def test_vllm_drops_a_depth_by_batch_size_on_data_parallel_ranks(facts):
    assert facts["depths"] is None
