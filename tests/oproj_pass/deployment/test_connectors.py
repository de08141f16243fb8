import pytest
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.deployment import Severity
from oproj_pass.deployment.connectors import walk_connectors

OFFLOAD = {"kv_connector": "PreemptOffloadConnector"}
MOONCAKE = {"kv_connector": "MooncakeConnectorV1"}


def rules_of(report):
    return [finding.rule for finding in report.findings]


def nested(chain, leaf, depth):
    for _ in range(depth):
        leaf = chain(MOONCAKE, leaf)
    return leaf | {"kv_role": "kv_consumer"}


class TestOffloadConnector:
    @pytest.mark.parametrize("depth", [0, 1, 2, 5])
    def test_is_found_at_any_depth(self, check, chain, depth):
        assert check(kv_transfer_config=nested(chain, OFFLOAD, depth)).ok

    @pytest.mark.parametrize("depth", [0, 1, 2])
    def test_is_missed_with_the_names_of_the_chain(self, check, chain, depth):
        report = check(kv_transfer_config=nested(chain, MOONCAKE, depth))
        assert rules_of(report) == [10]
        assert "MooncakeConnectorV1" in report.errors[0].value

    def test_is_known_by_its_former_name(self, check, chain):
        former = {"kv_connector": "RecomputeCPUOffloadConnector"}
        assert check(kv_transfer_config=nested(chain, former, 2)).ok

    def test_is_named_both_ways_in_the_remedy(self, check, chain):
        (finding,) = check(kv_transfer_config=nested(chain, MOONCAKE, 0)).findings
        for name in ("PreemptOffloadConnector", "RecomputeCPUOffloadConnector"):
            assert name in finding.remedy

    def test_is_not_looked_for_without_a_real_split(self, check, chain):
        assert check(size=1, kv_transfer_config=nested(chain, MOONCAKE, 1)).ok

    def test_is_matched_by_name_and_not_by_a_part_of_it(self, check, chain):
        other = {"kv_connector": "NotPreemptOffloadConnectorV1"}
        assert rules_of(check(kv_transfer_config=nested(chain, other, 1))) == [10]

    def test_is_not_taken_from_a_value_that_is_no_connector(self, check, chain):
        mention = MOONCAKE | {"kv_connector_extra_config": {"comment": "PreemptOffloadConnector"}}
        assert rules_of(check(kv_transfer_config=nested(chain, mention, 1))) == [10]


class TestWalk:
    def test_visits_a_chain_that_holds_itself_once(self, check, chain):
        config = chain(MOONCAKE, OFFLOAD)
        config["kv_connector_extra_config"]["connectors"].append(config)
        assert [c.name for c in walk_connectors(config)] == [
            "MultiConnector",
            "MooncakeConnectorV1",
            "PreemptOffloadConnector",
        ]

    def test_reports_on_a_chain_that_holds_itself(self, check, chain):
        config = chain(MOONCAKE)
        config["kv_connector_extra_config"]["self"] = config
        report = check(kv_transfer_config=config)
        assert rules_of(report) == [10]
        assert report.to_dict()

    def test_gives_a_child_the_role_of_its_parent_unless_it_has_its_own(self, chain):
        producer = MOONCAKE | {"kv_role": "kv_producer"}
        roles = {c.path.rpartition(".")[2]: c.kv_role for c in walk_connectors(chain(OFFLOAD, producer))}
        assert roles == {
            "kv_transfer_config": "kv_consumer",
            "connectors[0]": "kv_consumer",
            "connectors[1]": "kv_producer",
        }

    @given(
        st.recursive(
            st.builds(lambda name: {"kv_connector": name}, st.sampled_from(["A", "B"])),
            lambda nodes: (
                st.lists(nodes, max_size=3) | st.dictionaries(st.sampled_from("xyz"), nodes, max_size=2)
            ),
        )
    )
    def test_finds_every_connector_of_any_tree(self, tree):
        text = str(tree)
        assert len(walk_connectors({"root": tree})) == text.count("kv_connector")


class TestOwnSizes:
    """vllm-ascend#8442: "Expected 4, but got 8", without saying of what."""

    @pytest.mark.parametrize(
        ("key", "field", "actual"),
        [("tp_size", "tensor_parallel_size", 1), ("dp_size", "data_parallel_size", 8)],
    )
    @pytest.mark.parametrize("depth", [0, 1, 3])
    def test_that_disagree_are_refused_naming_both_fields(self, check, chain, key, field, actual, depth):
        leaf = OFFLOAD | {"kv_connector_extra_config": {"decode": {key: 4}, "prefill": {key: 99}}}
        (finding,) = check(kv_transfer_config=nested(chain, leaf, depth)).findings
        assert (finding.rule, finding.severity, finding.value) == (16, Severity.ERROR, 4)
        assert finding.field.endswith(f"decode.{key}")
        assert field in finding.required
        assert str(actual) in finding.required

    def test_that_agree_are_accepted(self, check, chain):
        sizes = {"decode": {"tp_size": 1, "dp_size": 8}, "prefill": {"tp_size": 8, "dp_size": 2}}
        leaf = OFFLOAD | {"kv_connector_extra_config": sizes}
        assert check(kv_transfer_config=nested(chain, leaf, 1)).findings == ()

    def test_of_a_producer_are_those_of_prefill(self, check, chain):
        leaf = MOONCAKE | {"kv_connector_extra_config": {"decode": {"tp_size": 4}, "prefill": {"tp_size": 2}}}
        report = check(size=0, kv_transfer_config=leaf | {"kv_role": "kv_producer"})
        assert [(finding.rule, finding.value) for finding in report.findings] == [(16, 2)]


class TestLayerwise:
    """vllm#31057: a full graph replays no Python, so the hooks between layers are skipped."""

    @pytest.mark.parametrize(
        "leaf",
        [
            {"kv_connector": "AscendStoreConnector", "kv_connector_extra_config": {"use_layerwise": True}},
            {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": {"use_layerwise": True}},
            {"kv_connector": "MooncakeLayerwiseConnector", "kv_role": "kv_both"},
        ],
    )
    @pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
    def test_demands_piecewise_two_deep_in_a_chain(self, check, chain, leaf, mode):
        config = chain(OFFLOAD, chain(MOONCAKE, leaf))
        (finding,) = check(cudagraph_mode=mode, kv_transfer_config=config).errors
        assert (finding.rule, finding.value) == (17, mode)
        assert "PIECEWISE" in finding.required
        assert leaf["kv_connector"] in finding.required
        assert check(cudagraph_mode="PIECEWISE", kv_transfer_config=config).findings == ()

    def test_holds_without_the_knob(self, check, chain):
        leaf = MOONCAKE | {"kv_connector_extra_config": {"use_layerwise": True}}
        assert rules_of(check(size=0, kv_transfer_config=chain(leaf))) == [17]

    def test_is_a_warning_where_the_hooks_are_idle(self, check, chain):
        report = check(kv_transfer_config=chain(OFFLOAD, {"kv_connector": "MooncakeLayerwiseConnector"}))
        assert report.ok
        assert [finding.rule for finding in report.warnings] == [17]
        assert report.oproj_tensor_parallel_size == 8

    @pytest.mark.parametrize("switch", [False, "false", None, 0])
    def test_is_not_seen_where_it_is_switched_off(self, check, chain, switch):
        leaf = MOONCAKE | {"kv_connector_extra_config": {"use_layerwise": switch}}
        assert check(kv_transfer_config=chain(OFFLOAD, leaf)).findings == ()
