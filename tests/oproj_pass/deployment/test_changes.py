"""What a finding says to set mends it, once it is merged into the deployment."""

import copy

import pytest

from oproj_pass.deployment import Deployment, check_deployment

BROKEN = {
    2: {"tensor_parallel_size": 2},
    3: {"data_parallel_size": 12},
    4: {"kv_transfer_config": {"kv_role": "kv_both"}},
    5: {"additional_config": {"scheduler_config": {"recompute_scheduler_enable": False}}},
    6: {"is_moe": False},
    7: {"num_attention_heads": 1, "head_dim": 12},
    8: {"enforce_eager": True},
    9: {"prefill_context_parallel_size": 2},
    10: {
        "kv_transfer_config": {
            "kv_connector": "MooncakeConnectorV1",
            "kv_connector_extra_config": {"connectors": []},
        }
    },
    11: {"prefill_context_parallel_size": 2, "compilation_config": {"cudagraph_mode": "FULL"}},
    12: {"pipeline_parallel_size": 2},
    13: {"max_cudagraph_capture_size": 16},
    17: {"kv_transfer_config": {"kv_connector_extra_config": {"use_layerwise": True}}},
    18: {"additional_config": {"finegrained_tp_config": {"olora_tensor_parallel_size": 8}}},
    19: {"additional_config": {"enable_pcp_o_proj_weight_sharding": True}},
    20: {"additional_config": {"scheduler_config": {"nonbsp_config": {"enabled": True}}}},
    22: {
        "mlp_intermediate_sizes": [18, 24],
        "additional_config": {"finegrained_tp_config": {"mlp_tensor_parallel_size": 8}},
    },
    23: {
        "speculative_config": {"method": "mtp"},
        "additional_config": {"finegrained_tp_config": {"lmhead_tensor_parallel_size": 8}},
    },
}


def merged(fields, change):
    for name, value in change.items():
        if isinstance(value, dict) and isinstance(fields.get(name), dict):
            value = merged(fields[name], value)
        fields = fields | {name: value}
    return fields


@pytest.fixture
def fields(valid):
    """The valid node with its graph mode where vLLM has it."""
    mode = valid.pop("cudagraph_mode")
    return valid | {"compilation_config": {"cudagraph_mode": mode}}


@pytest.mark.parametrize("rule", BROKEN)
def test_mends_the_rule(fields, rule):
    broken = merged(copy.deepcopy(fields), BROKEN[rule])
    (finding,) = [f for f in check_deployment(Deployment(**broken)).findings if f.rule == rule]
    assert finding.change is not None
    mended = check_deployment(Deployment(**merged(broken, finding.change)))
    assert rule not in [f.rule for f in mended.findings]


def test_offers_sizes_that_keep_every_rule(fields):
    broken = merged(fields, {"data_parallel_size": 12, "num_attention_heads": 1, "head_dim": 18})
    findings = check_deployment(Deployment(**broken)).findings
    assert [finding.rule for finding in findings] == [3, 7]
    for finding in findings:
        assert "to one of [1, 2, 3, 6]" in finding.remedy
        assert not check_deployment(Deployment(**merged(broken, finding.change))).findings
