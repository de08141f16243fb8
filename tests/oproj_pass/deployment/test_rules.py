import pytest

from oproj_pass.deployment import Knob, Severity

DENSE = {"is_moe": False}
RECOMPUTE = "additional_config.scheduler_config.recompute_scheduler_enable"


def rules_of(report):
    return [finding.rule for finding in report.findings]


def test_accepts_a_decode_node_that_keeps_every_rule(check):
    report = check()
    assert report.ok
    assert report.findings == ()
    assert report.not_judged == ()
    assert report.oproj_tensor_parallel_size == 8


@pytest.mark.parametrize(
    ("rule", "changes", "field", "value"),
    [
        (2, {"tensor_parallel_size": 2}, "tensor_parallel_size", 2),
        (3, {"data_parallel_size": 12}, "data_parallel_size", 12),
        (3, {"data_parallel_size": 1}, "data_parallel_size", 1),
        (6, DENSE, "is_moe", False),
        (7, {"num_attention_heads": 5, "head_dim": 100}, "num_attention_heads * head_dim", 500),
        (8, {"cudagraph_mode": "none"}, "cudagraph_mode", "NONE"),
        (8, {"cudagraph_mode": "NONE"}, "cudagraph_mode", "NONE"),
        (8, {"enforce_eager": True}, "enforce_eager", True),
        (9, {"prefill_context_parallel_size": 2}, "prefill_context_parallel_size", 2),
        (12, {"pipeline_parallel_size": 2}, "pipeline_parallel_size", 2),
    ],
)
def test_refuses_with_the_field_and_its_value(check, rule, changes, field, value):
    report = check(**changes)
    assert not report.ok
    (finding,) = report.findings
    assert (finding.rule, finding.severity) == (rule, Severity.ERROR)
    assert (finding.field, finding.value) == (field, value)
    assert finding.required
    assert finding.remedy


def test_silent_hang_reports_each_have_their_own_message(check):
    """vllm-ascend#16967, #15175: a guard on enforce_eager alone let mode NONE pass, and the step hung."""
    changes = [
        {"cudagraph_mode": "none"},
        {"enforce_eager": True},
        {"tensor_parallel_size": 2},
        {"data_parallel_size": 1},
        {"prefill_context_parallel_size": 2},
    ]
    reports = [check(**change) for change in changes]
    assert not any(report.ok for report in reports)
    assert len({report.errors[0].message for report in reports}) == len(changes)


@pytest.mark.parametrize("role", ["kv_producer", "kv_both", None])
def test_refuses_a_node_that_is_not_a_kv_consumer(check, chain, valid, role):
    config = valid["kv_transfer_config"] | {"kv_role": role}
    (finding,) = check(kv_transfer_config=config).findings
    assert (finding.rule, finding.value) == (4, role)


@pytest.mark.parametrize("config", [None, {}, {"kv_role": "kv_consumer"}])
def test_refuses_a_node_without_a_connector(check, config):
    assert rules_of(check(kv_transfer_config=config)) == [4, 10]


@pytest.mark.parametrize("switch", [False, None, "true", "false", 0])
def test_refuses_a_recompute_switch_that_is_not_true(check, valid, switch):
    config = valid["additional_config"] | {"scheduler_config": {"recompute_scheduler_enable": switch}}
    (finding,) = check(additional_config=config).findings
    assert (finding.rule, finding.field, finding.value) == (5, RECOMPUTE, switch)


def test_asks_for_the_recompute_switch_where_it_lives_now(check, valid):
    config = valid["additional_config"]
    del config["scheduler_config"]
    (finding,) = check(additional_config=config).findings
    assert (finding.rule, finding.field, finding.value) == (5, RECOMPUTE, False)
    assert RECOMPUTE in finding.remedy


def test_reads_the_deprecated_recompute_switch(check, valid):
    config = valid["additional_config"]
    del config["scheduler_config"]
    assert check(additional_config=config | {"recompute_scheduler_enable": True}).ok
    (finding,) = check(additional_config=config | {"recompute_scheduler_enable": False}).findings
    assert finding.field == "additional_config.recompute_scheduler_enable"
    assert RECOMPUTE in finding.remedy


@pytest.mark.parametrize("newer", [True, False])
def test_lets_the_newer_recompute_switch_win(check, valid, newer):
    config = valid["additional_config"] | {"recompute_scheduler_enable": not newer}
    config["scheduler_config"]["recompute_scheduler_enable"] = newer
    report = check(additional_config=config)
    assert rules_of(report) == ([] if newer else [5])
    assert all("wins over" in finding.remedy for finding in report.findings)


@pytest.mark.parametrize("knob", [knob for knob in Knob if knob is not Knob.OPROJ])
def test_refuses_any_fine_grained_size_on_a_dense_model(check, sized, knob):
    assert 6 in rules_of(check(additional_config=sized({knob: 2}), **DENSE))


def test_refuses_every_size_that_does_not_divide_the_data_parallel_size(check, sized):
    config = sized({Knob.OPROJ: 8, Knob.MLP: 3, Knob.LMHEAD: 2})
    (finding,) = check(additional_config=config).findings
    assert finding.rule == 3
    assert "mlp_tensor_parallel_size=3" in finding.required


def test_names_every_cause_of_graph_mode_none(check):
    report = check(enforce_eager=True, cudagraph_mode="NONE", compilation_mode=2)
    assert [finding.field for finding in report.errors] == [
        "enforce_eager",
        "cudagraph_mode",
        "compilation_config.mode",
    ]
    assert {finding.rule for finding in report.errors} == {8}


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL", "FULL_AND_PIECEWISE"])
def test_refuses_graph_modes_under_pcp_and_dp_even_without_the_knob(check, mode):
    report = check(size=0, cudagraph_mode=mode, prefill_context_parallel_size=2)
    assert rules_of(report) == [11]
    assert report.errors[0].value == mode
    assert check(size=0, cudagraph_mode=mode, prefill_context_parallel_size=2, data_parallel_size=1).ok
    assert check(size=0, cudagraph_mode=mode, prefill_context_parallel_size=1).ok


@pytest.mark.parametrize("mode", ["NONE", "FULL_DECODE_ONLY"])
def test_allows_eager_and_decode_only_graphs_under_pcp_and_dp(check, mode):
    assert check(size=0, cudagraph_mode=mode, prefill_context_parallel_size=2).ok


def test_says_which_rules_need_a_model_config(check):
    report = check(is_moe=None, head_dim=None)
    assert report.ok
    assert [line.split(":")[0] for line in report.not_judged] == ["rule 6", "rule 7"]
