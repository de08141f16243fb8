import io
import json

import pytest
from rich.console import Console

from oproj_pass.deployment import Deployment, check_deployment
from oproj_pass.errors import ConfigError

SHARDED = {"additional_config": {"finegrained_tp_config": {"oproj_tensor_parallel_size": 2}}}


@pytest.fixture
def refused(check):
    return check(tensor_parallel_size=2, max_num_seqs=600, pipeline_parallel_size=2)


def test_raises_one_error_that_lists_them_all(refused):
    with pytest.raises(ConfigError) as caught:
        refused.raise_if_errors()
    text = str(caught.value)
    assert "2 deployment rule(s)" in text
    assert "rule 2: tensor_parallel_size is 2" in text
    assert "rule 12: pipeline_parallel_size is 2" in text
    assert "rule 13" not in text


def test_leaves_moot_rules_out():
    deployment = Deployment(tensor_parallel_size=2, pipeline_parallel_size=2, **SHARDED)
    found = {finding.rule for finding in check_deployment(deployment).findings}
    kept = {finding.rule for finding in check_deployment(deployment, moot=(2, 4)).findings}
    assert {2, 4} <= found
    assert kept == found - {2, 4}


def test_does_not_raise_for_warnings(check):
    check(max_num_seqs=600).raise_if_errors()


def test_is_json(refused):
    data = json.loads(json.dumps(refused.to_dict()))
    assert data["ok"] is False
    assert data["oproj_tensor_parallel_size"] == 0
    assert data["cudagraph_mode"] == "FULL_DECODE_ONLY"
    assert [finding["rule"] for finding in data["findings"]] == [2, 12, 13]
    assert [finding["severity"] for finding in data["findings"]] == ["error", "error", "warning"]
    assert set(data["findings"][0]) == {"rule", "severity", "field", "value", "required", "remedy", "change"}


def test_prints_every_finding_whole_on_a_narrow_terminal(refused):
    console = Console(file=io.StringIO(), width=40)
    console.print(refused)
    text = " ".join(console.file.getvalue().split())
    for finding in refused.findings:
        assert f"rule {finding.rule}" in text
        assert " ".join(finding.remedy.split()) in text


def test_escapes_values_in_html_and_never_reads_them_as_markup(check):
    hostile = "<script>alert(1)</script>[red]"
    report = check(size=hostile)
    assert "<script>" not in report._repr_html_()
    assert "&lt;script&gt;" in report._repr_html_()
    console = Console(file=io.StringIO(), width=200)
    console.print(report)
    assert "[red]" in console.file.getvalue()


def test_shows_what_was_not_judged(check):
    report = check(is_moe=None)
    console = Console(file=io.StringIO(), width=200)
    console.print(report)
    assert "not judged: rule 6" in console.file.getvalue()
    assert "not judged: rule 6" in report._repr_html_()
