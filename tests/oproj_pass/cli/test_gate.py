"""`oproj diff --check`: a lost place or a new collective fails, anything else passes."""

import json

import pytest

from oproj_pass.cli.gate import regressions
from oproj_pass.errors import ConfigError

SUMMARY = {
    "paths": ["layers.0.o_proj", "layers.1.o_proj"],
    "collectives": {"all_reduce": {"before": 0, "after": 2}},
}


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "base.json"
    path.write_text(json.dumps(SUMMARY))
    return path


def test_the_same_diff_and_a_better_one_pass(base):
    assert regressions(base, SUMMARY) == []
    fewer = {"all_reduce": {"before": 0, "after": 1}}
    assert (
        regressions(base, SUMMARY | {"collectives": fewer, "paths": [*SUMMARY["paths"], "layers.2.o_proj"]})
        == []
    )


def test_a_lost_place_fails_by_name(base):
    assert regressions(base, SUMMARY | {"paths": ["layers.0.o_proj"]}) == [
        "no longer changed: layers.1.o_proj"
    ]


def test_a_collective_that_appears_fails_by_name(base):
    more = SUMMARY["collectives"] | {"all_gather": {"before": 0, "after": 1}}
    assert regressions(base, SUMMARY | {"collectives": more}) == ["all_gather: 1 calls, 0 accepted"]


def test_a_file_that_is_no_diff_is_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match=r"oproj diff \.\.\. --json"):
        regressions(path, SUMMARY)


def test_the_command_exits_1_for_what_is_worse_and_0_else(oproj, llama, tmp_path):
    accepted = tmp_path / "accepted.json"
    command = ("diff", "--model", llama(), "--oproj-tensor-parallel-size", 2)
    accepted.write_text(oproj(*command, "--json").stdout)
    assert oproj(*command, "--check", accepted).exit_code == 0
    document = json.loads(accepted.read_text())
    accepted.write_text(json.dumps(document | {"collectives": {}}))
    worse = oproj(*command, "--check", accepted)
    assert worse.exit_code == 1
    assert "all_to_all_single: 2 calls, 0 accepted" in worse.output
