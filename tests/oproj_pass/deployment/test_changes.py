"""What a finding says to set mends it, once it is merged into the deployment; all together mend all."""

import copy
import json

import pytest
import yaml
from hypothesis import given, reject
from hypothesis import strategies as st

from oproj_pass.deployment import Deployment, check_deployment
from oproj_pass.deployment.check import JUDGES
from oproj_pass.deployment.findings import merged
from tests.oproj_pass.deployment.violations import VIOLATIONS

SIZES = "finegrained_tp_config"
TURNS = {  # further ways to break a rule, each with a remedy of its own
    "unusable size": lambda f: f["additional_config"].update({SIZES: {"mlp_tensor_parallel_size": -1}}),
    "sizes that are no mapping": lambda f: f["additional_config"].update({SIZES: 8}),
    "automatic size": lambda f: f["additional_config"][SIZES].update(oproj_tensor_parallel_size="auto"),
    "no connector": lambda f: f.pop("kv_transfer_config"),
    "a producer": lambda f: f["kv_transfer_config"].update(kv_role="kv_producer"),
    "one connector": lambda f: f.update(
        kv_transfer_config={
            "kv_connector": "MooncakeConnectorV1",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"decode": {"tp_size": 2, "dp_size": 3}, "use_layerwise": True},
        }
    ),
    "eager": lambda f: f.update(enforce_eager=True),
    "pieces without compilation": lambda f: f.update(compilation_config={"mode": 0}),
    "a list without the largest step": lambda f: f.update(cudagraph_capture_sizes=[1, 8]),
    "a list and its ceiling": lambda f: f.update(
        compilation_config={"cudagraph_capture_sizes": [1, 8], "max_cudagraph_capture_size": 8}
    ),
}
ONE_SPELLING = {"a list without the largest step", "a list and its ceiling"}
NO_KEY_TO_SET = {1}  # VIOLATIONS' unknown key: a merge removes nothing, the remedy says to


def broken_by(fields, *turns):
    fields = copy.deepcopy(fields)
    for turn in turns:
        turn(fields)
    return fields


@pytest.mark.parametrize("rule", sorted(set(JUDGES) - NO_KEY_TO_SET))
def test_mends_the_rule(valid, rule):
    broken = broken_by(valid, VIOLATIONS[rule])
    findings = [f for f in check_deployment(Deployment(**broken)).findings if f.rule == rule]
    for finding in findings:
        mended = check_deployment(Deployment(**merged(broken, finding.change)))
        assert finding.field not in [f.field for f in mended.findings if f.rule == rule]


@given(
    rules=st.sets(st.sampled_from(sorted(set(VIOLATIONS) - NO_KEY_TO_SET)), max_size=4),
    turns=st.sets(st.sampled_from(sorted(TURNS)), max_size=2).filter(lambda turns: not turns >= ONE_SPELLING),
)
def test_all_that_is_to_be_set_passes_together(valid_fields, rules, turns):
    changes = [*(VIOLATIONS[rule] for rule in sorted(rules)), *(TURNS[turn] for turn in sorted(turns))]
    try:
        broken = broken_by(valid_fields, *changes)
    except (KeyError, AttributeError):
        reject()  # one change took away what another changes
    report = check_deployment(Deployment(**broken))
    assert all(finding.change is not None for finding in report.findings)
    assert check_deployment(Deployment(**merged(broken, report.change))).findings == ()


def test_a_remedy_left_out_leaves_its_finding(valid):
    broken = broken_by(valid, VIOLATIONS[2], VIOLATIONS[9])
    first, second = check_deployment(Deployment(**broken)).findings
    left = check_deployment(Deployment(**merged(broken, second.change))).findings
    assert [finding.rule for finding in left] == [first.rule]


def test_is_json_and_so_yaml(valid):
    broken = broken_by(valid, VIOLATIONS[10], VIOLATIONS[13], VIOLATIONS[16])
    change = check_deployment(Deployment(**broken)).to_dict()["change"]
    for read in (json.loads, yaml.safe_load):
        assert not check_deployment(Deployment(**merged(broken, read(json.dumps(change))))).findings


@pytest.mark.parametrize(
    "mode", [{"cudagraph_mode": "NONE"}, {"compilation_config": {"cudagraph_mode": "NONE"}}]
)
def test_sets_a_field_where_the_deployment_states_it(valid, mode):
    del valid["cudagraph_mode"]
    (finding,) = check_deployment(Deployment(**valid, **mode)).findings
    assert finding.change.keys() == mode.keys()


def test_offers_sizes_that_keep_every_rule(valid):
    broken = valid | {"data_parallel_size": 12, "num_attention_heads": 1, "head_dim": 18}
    findings = check_deployment(Deployment(**broken)).findings
    assert [finding.rule for finding in findings] == [3, 7]
    for finding in findings:
        assert "to one of [1, 2, 3, 6]" in finding.remedy
        assert not check_deployment(Deployment(**merged(broken, finding.change))).findings
