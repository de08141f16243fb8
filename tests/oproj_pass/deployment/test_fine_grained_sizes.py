"""Rule 1: what counts as a size."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.deployment import Deployment, check_deployment

KNOB = "oproj_tensor_parallel_size"
PATH = f"additional_config.finegrained_tp_config.{KNOB}"


@pytest.mark.parametrize("size", [8, "8", " 8 ", "+8", 8.0])
def test_accepts_an_integer_however_it_is_written(check, size):
    report = check(size=size)
    assert report.findings == ()
    assert report.oproj_tensor_parallel_size == 8


def test_judges_an_automatic_size_as_the_largest_that_fits(check):
    report = check(size="auto", data_parallel_size=12)
    assert report.ok
    assert report.oproj_tensor_parallel_size == 4
    (warning,) = report.warnings
    assert (warning.rule, warning.field, warning.value) == (1, PATH, "auto")
    assert warning.change == {"additional_config": {"finegrained_tp_config": {KNOB: 4}}}
    assert 3 in [finding.rule for finding in check(size=8, data_parallel_size=12).errors]


def test_refuses_an_automatic_size_of_what_nothing_here_shards(check, valid):
    config = valid["additional_config"]
    config["finegrained_tp_config"]["olora_tensor_parallel_size"] = "auto"
    assert 1 in [finding.rule for finding in check(additional_config=config).errors]


@pytest.mark.parametrize("size", [0, "0", 0.0, None])
def test_is_off_when_nothing_is_asked_for(check, size):
    """`null` was the default of the option that came first."""
    report = check(size=size, tensor_parallel_size=2, pipeline_parallel_size=2)
    assert report.findings == report.not_judged == ()
    assert report.oproj_tensor_parallel_size == 0


@pytest.mark.parametrize("size", [True, False, -2, "-2", 2.5, "2.5", "eight", "", [2], float("nan")])
def test_refuses_what_is_not_a_size(check, size):
    report = check(size=size)
    (finding,) = report.errors
    assert (finding.rule, finding.field) == (1, PATH)
    assert repr(finding.value) == repr(size)
    assert report.oproj_tensor_parallel_size == 0
    assert KNOB in report.not_judged[0]


def test_each_kind_of_bad_size_has_its_own_message(check):
    values = [True, -2, 2.5, "two", [2]]
    assert len({check(size=value).errors[0].remedy for value in values}) == len(values)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("wo_proj_tensor_parallel_size", KNOB),
        ("oproj_tp_size", None),
        ("o_proj_tensor_parallel_size", KNOB),
        ("lm_head_tensor_parallel_size", "lmhead_tensor_parallel_size"),
    ],
)
def test_refuses_an_unknown_key_with_a_suggestion(check, valid, name, meant):
    config = valid["additional_config"]
    config["finegrained_tp_config"][name] = 2
    (finding,) = check(additional_config=config).findings
    assert (finding.rule, finding.value) == (1, 2)
    assert name in finding.field
    assert meant is None or repr(meant) in finding.remedy


@pytest.mark.parametrize("section", [[2], 8, "oproj", None])
def test_refuses_a_section_that_is_not_a_mapping(check, valid, section):
    config = valid["additional_config"] | {"finegrained_tp_config": section}
    assert [finding.rule for finding in check(additional_config=config).findings] == [1]


def test_refuses_the_size_beside_its_section(check, valid):
    """The oldest spelling; today's vllm-ascend ignores it and runs unsharded in silence."""
    config = valid["additional_config"] | {KNOB: 8}
    (finding,) = check(additional_config=config).findings
    assert (finding.rule, finding.field) == (1, f"additional_config.{KNOB}")
    assert "under additional_config.finegrained_tp_config" in finding.required
    assert "Move" in finding.remedy


def test_refuses_a_misspelled_section(check):
    report = check(additional_config={"fine_grained_tp_config": {KNOB: 8}})
    (finding,) = report.findings
    assert (finding.rule, finding.field) == (1, "additional_config.fine_grained_tp_config")
    assert "'finegrained_tp_config'" in finding.required


def test_leaves_other_keys_of_additional_config_alone(check, valid):
    others = {"ascend_compilation_config": {"enable_npugraph_ex": False}, "enable_cpu_binding": True}
    assert check(additional_config=valid["additional_config"] | others).findings == ()


def test_reports_every_bad_entry_and_still_judges_the_good_one(check, valid):
    sizes = {KNOB: 8, "mlp_tensor_parallel_size": -1, "embedding_tensor_parallel_size": "x", "nothing": 1}
    config = valid["additional_config"] | {"finegrained_tp_config": sizes}
    report = check(additional_config=config, tensor_parallel_size=2)
    assert [finding.rule for finding in report.findings] == [1, 1, 1, 2]
    assert report.oproj_tensor_parallel_size == 8


_json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=2) | st.dictionaries(st.text(max_size=3), children, max_size=2)
    ),
    max_leaves=4,
)


@given(size=_json_values)
def test_any_value_is_either_a_size_or_a_finding(size):
    deployment = Deployment(additional_config={"finegrained_tp_config": {KNOB: size}})
    report = check_deployment(deployment)
    refused = any(finding.field == PATH for finding in report.errors)
    assert refused == (report.oproj_tensor_parallel_size == 0 and not _is_zero(size))
    json.dumps(report.to_dict(), allow_nan=True)


def _is_zero(size):
    if size is None:
        return True
    if isinstance(size, str):
        try:
            return int(size) == 0
        except ValueError:
            return False
    return isinstance(size, (int, float)) and not isinstance(size, bool) and size == 0
