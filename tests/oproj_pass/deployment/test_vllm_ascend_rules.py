"""Our verdicts beside those of the real vllm-ascend 0.23.0 on its own configurations.

`data/vllm_ascend_rules.json` records what that release did. A case agrees when both accept, or when the rule
that it was refused for there is among those that refuse it here. Every other case is in DIFFERENCES with its
reason: a difference that is not listed fails, and so does a listed one that is none.
"""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from oproj_pass.deployment import Deployment, check_deployment
from oproj_pass.deployment.finegrained import read_sizes

RECORD = json.loads((Path(__file__).parent / "data" / "vllm_ascend_rules.json").read_text(encoding="utf-8"))
CASES = {row["case"]: row for row in RECORD["rules"]}
ACCEPTED = {name: row for name, row in CASES.items() if row["result"] == "accepted"}

_QWEN3 = {"num_attention_heads": 4, "head_dim": 64, "hidden_size": 128}
MODELS = {
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3 | {"num_experts": 4},
    "deepseek_v3": {
        "num_attention_heads": 4,
        "v_head_dim": 128,
        "kv_lora_rank": 512,
        "hidden_size": 128,
        "n_routed_experts": 8,
    },
}

# a fragment of its message -> the rule here that the message is about
THEIR_RULES = {
    "'>' not supported between instances": 1,
    "'list' object has no attribute": 1,
    "oproj_tensor_parallel_size currently requires tensor_parallel_size == 1": 2,
    "finegrained tp sizes must divide by data_parallel_size": 3,
    "oproj_tensor_parallel_size is only supported in pd scenario": 4,
    "recompute_scheduler_enable can only be enabled on PD-disaggregated D nodes": 4,
    "require recompute_scheduler_enable=true": 5,
    "can be enabled only for MOE models": 6,
    "oproj_tensor_parallel_size is only supported in graph mode": 8,
    "PCP (Prefill Context Parallelism) and DP": 11,
}


class Difference(NamedTuple):
    """The rules that refuse the case here, and why that is not what 0.23.0 did."""

    rules: frozenset[int]
    reason: str


def _needs_offload(*cases):
    reason = "0.23.0 sends a preempted request back to prefill; it has no PreemptOffloadConnector to ask for"
    return {case: Difference(frozenset({10}), reason) for case in cases}


def _accepted_here(reason, *cases):
    return {case: Difference(frozenset(), reason) for case in cases}


DIFFERENCES = {
    **_needs_offload(
        "oproj=4",
        "oproj=2",
        "oproj=2.0",
        "oproj=2, PIECEWISE",
        "oproj=2, FULL",
        "oproj=2, FULL_DECODE_ONLY",
        "oproj=2, mode=3 backend=eager",
        "oproj=2, qwen3-moe",
        "oproj=2, no expert parallel",
        "oproj=2, R=12",
        "oproj=2, R=100",
        "oproj=2, R=600",
        "oproj=2, R=20 spec=1",
        "oproj=2, R=20 spec=3",
        "oproj=2, R=100 user list [..,100]",
        "oproj=2, R=100 explicit max=100",
        "oproj=2, R=8 user list [3]",
        "oproj=2, T=64 R=64 spec=1",
        "oproj=2, MultiConnector[Mooncake]",
        "oproj=2, enable_lora",
        "oproj=2, async scheduling",
        "oproj=2, enable_npugraph_ex off",
        "oproj=2 mlp=4 lmhead=2 embedding=2",
        "embedding=2",
    ),
    "oproj='2' (string)": Difference(
        frozenset({10}), "0.23.0 compares text with a number; the text '2' is a size"
    ),
    "oproj=2.5": Difference(
        frozenset({1}), "0.23.0 stumbles over the division; half a rank is no size to begin with"
    ),
    "oproj=-2": Difference(frozenset({1}), "0.23.0 checks no sign and carries -2 into group creation"),
    "oproj=True": Difference(frozenset({1}), "0.23.0 reads True as 1; a boolean does not say how many ranks"),
    "unknown key wo_proj=2": Difference(
        frozenset({1}), "0.23.0 ignores the key and runs unsharded in silence"
    ),
    "top-level oproj_tensor_parallel_size=2": Difference(
        frozenset({1}), "0.23.0 ignores the key there and runs unsharded in silence"
    ),
    "oproj=2, cudagraph NONE": Difference(
        frozenset({8, 10}), "0.23.0 tests enforce_eager only, so NONE hangs"
    ),
    "oproj=2, compile mode 0": Difference(
        frozenset({8, 10}), "mode 0 leaves graph mode NONE, which 0.23.0 allows"
    ),
    "oproj=2, mode=2 backend=oproj_npu": Difference(
        frozenset({8, 10}), "0.23.0 drops the backend, turns graphs off in silence and keeps the knob on"
    ),
    "oproj=2, pp=2": Difference(
        frozenset({10, 12}), "0.23.0 checks no pipeline parallelism; later releases do"
    ),
    **_accepted_here("not about a fine-grained size", "recompute, kv_both", "recompute, no kv"),
    "oproj=None": Difference(
        frozenset(), "0.23.0 compares None with a number; null was the default at first, and is off"
    ),
    "embedding=2, eager": Difference(
        frozenset({8, 10}), "0.23.0 exchanges a fixed capacity; here an embedding brings the rows of its step"
    ),
    "mlp=2, eager, no kv": Difference(
        frozenset({4, 5, 8, 10}), "later releases ask of the MLP's size what 0.23.0 asks of o_proj's"
    ),
    "mlp=2, tp=2": Difference(
        frozenset({2, 10}), "later releases ask of the MLP's size what 0.23.0 asks of o_proj's"
    ),
    **_accepted_here("about sampling, not about a weight", "lmhead=2 + enable_reduce_sample"),
    "olora=2": Difference(frozenset({18}), "0.23.0 shards it; here nothing does"),
    "olora=2, eager": Difference(frozenset({18}), "olora was dropped by later releases"),
    "olora=2, no kv": Difference(frozenset({18}), "olora was dropped by later releases"),
    "oproj=2, dcp=2 tp=1": Difference(frozenset({10}), "vLLM itself refuses dcp > tp; no rule of this table"),
    "oproj=2, flashcomm1": Difference(frozenset({10}), "Flash Comm needs tp > 1; no rule of this table"),
    "oproj=2, ASCEND_LAUNCH_BLOCKING=1": Difference(
        frozenset({10}), "an environment variable, which is no field of a deployment"
    ),
    "oproj=2, MultiConnector[Mooncake, PreemptOffload]": Difference(
        frozenset(), "0.23.0 does not know the connector that rule 10 asks for"
    ),
}


def _fields(row):
    """The case's arguments with the record's own defaults, and its model's facts for a model's name."""
    fields = {"max_num_seqs": 16, "max_num_batched_tokens": 8192, **row["args"]}
    return fields | {"hf_config": MODELS[fields.pop("model")]}


def _errors(fields):
    return frozenset(finding.rule for finding in check_deployment(Deployment(**fields)).errors)


def _their_rule(row):
    rules = [rule for text, rule in THEIR_RULES.items() if text in row["message"]]
    return rules[0] if rules else None


def _agrees(row, errors):
    return not errors if row["result"] == "accepted" else _their_rule(row) in errors


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_vllm_ascend_or_differs_as_listed(name):
    row = CASES[name]
    errors = _errors(_fields(row))
    if name in DIFFERENCES:
        assert not _agrees(row, errors), f"{name} no longer differs: take it off the list"
        assert errors == DIFFERENCES[name].rules
    else:
        assert _agrees(row, errors), (
            f"{name}: here {sorted(errors)}, there {row['result']} {row.get('message')}"
        )


def test_lists_only_cases_of_the_record():
    assert set(DIFFERENCES) <= set(CASES)
    assert all(difference.reason for difference in DIFFERENCES.values())


def _complete(config):
    """The same chain with the connector that 0.23.0 lacks."""
    children = [config, {"kv_connector": "PreemptOffloadConnector"}]
    role = config.get("kv_role")
    extra = {"connectors": children}
    return {"kv_connector": "MultiConnector", "kv_role": role, "kv_connector_extra_config": extra}


@pytest.mark.parametrize("name", [name for name, item in DIFFERENCES.items() if item.rules == {10}])
def test_accepts_once_the_chain_has_the_connector(name):
    row = CASES[name]
    fields = _fields(row)
    assert _errors(fields | {"kv_transfer_config": _complete(fields["kv_transfer_config"])}) == frozenset()


@pytest.mark.parametrize("name", ACCEPTED)
def test_expects_the_graph_mode_that_vllm_ascend_ended_with(name):
    row = ACCEPTED[name]
    assert Deployment(**_fields(row)).effective_cudagraph_mode.name == row["mode"]


UNUSABLE = {"oproj=-2", "oproj=True"}


@pytest.mark.parametrize("name", [name for name in ACCEPTED if name not in UNUSABLE])
def test_reads_the_sizes_that_vllm_ascend_read(name):
    row = ACCEPTED[name]
    sizes = read_sizes(row["args"]["additional_config"]).active
    assert {size.removesuffix("_tensor_parallel_size"): value for size, value in sizes.items()} == row[
        "sizes"
    ]


SPLITS = [
    name for name, row in ACCEPTED.items() if row["sizes"].get("oproj", 0) > 1 and row["mode"] != "NONE"
]


@pytest.mark.parametrize("name", SPLITS)
def test_judges_rule_13_on_the_sizes_that_vllm_ascend_captured(name):
    row = ACCEPTED[name]
    fields = _fields(row)
    config = dict(fields.pop("compilation_config", {}))
    config |= {"cudagraph_capture_sizes": row["capture"], "max_cudagraph_capture_size": row["max"]}
    drafts = fields.get("speculative_config", {}).get("num_speculative_tokens", 0)
    largest_step = min(fields["max_num_batched_tokens"], fields["max_num_seqs"] * (1 + drafts))
    report = check_deployment(Deployment(**fields, compilation_config=config))
    assert (13 in [finding.rule for finding in report.findings]) == (row["max"] < largest_step)


def test_judges_rule_13_on_the_default_sizes_of_vllm_ascend(check):
    """126 default lists, which append nothing: the knob stays on in few of them."""
    kept = 0
    for row in RECORD["default_capture_sizes"]:
        bound = {
            name: row[name] for name in ("max_num_seqs", "num_speculative_tokens", "max_num_batched_tokens")
        }
        report = check(**bound, cudagraph_capture_sizes=row["capture"])
        steps = row["max_num_seqs"] * (1 + row["num_speculative_tokens"])
        assert (report.oproj_tensor_parallel_size == 8) == (row["max"] >= steps), row
        kept += report.oproj_tensor_parallel_size == 8
    assert 0 < kept < len(RECORD["default_capture_sizes"])
