"""Rules 18 to 21, and what the MLP's size shares with o_proj's."""

import pytest

from oproj_pass.deployment import Knob, Rule, Severity

OTHERS = [knob for knob in Knob if knob is not Knob.OPROJ]
UNBUILT = Rule.BUILT_SIZES


def rules_of(report):
    return [finding.rule for finding in report.findings]


class TestSizesThatNothingShards:
    """They passed with tp 4, pp 2 and eager, and nothing was sharded."""

    @pytest.mark.parametrize("knob", OTHERS)
    @pytest.mark.parametrize("size", [1, 2, "8"])
    def test_are_refused_by_name(self, check, sized, knob, size):
        report = check(additional_config=sized({knob: size}), moot=(Rule.RECOMPUTE_SCHEDULER,))
        (finding,) = report.errors
        assert (finding.rule, finding.severity, finding.value) == (UNBUILT, Severity.ERROR, int(size))
        assert finding.field == f"additional_config.finegrained_tp_config.{knob}"
        assert knob.shards in finding.required

    @pytest.mark.parametrize("knob", OTHERS)
    @pytest.mark.parametrize("size", [0, None])
    def test_are_accepted_when_off(self, check, sized, knob, size):
        assert check(additional_config=sized({Knob.OPROJ: 8, knob: size})).findings == ()

    def test_leave_the_built_one_alone(self, check):
        assert UNBUILT not in rules_of(check(tensor_parallel_size=2))


class TestAllSizes:
    @pytest.mark.parametrize("knob", list(Knob))
    def test_exclude_pipeline_parallelism(self, check, sized, knob):
        report = check(additional_config=sized({knob: 2}), pipeline_parallel_size=2, moot=(UNBUILT,))
        assert rules_of(report) == [Rule.PIPELINE_PARALLEL]
        assert f"{knob}=2" in report.errors[0].required

    @pytest.mark.parametrize("knob", [Knob.LMHEAD, Knob.EMBEDDING])
    def test_of_a_fixed_capacity_replace_tensor_parallelism_with_a_warning(self, check, sized, knob):
        report = check(
            additional_config=sized({knob: 2}), tensor_parallel_size=4, enforce_eager=True, moot=(UNBUILT,)
        )
        (finding,) = report.findings
        assert (finding.rule, finding.severity) == (Rule.TENSOR_PARALLEL, Severity.WARNING)
        assert f"{knob}=2" in finding.required


class TestMlp:
    """It exchanges as many rows as the step has, as o_proj does."""

    @pytest.mark.parametrize(
        ("rule", "changes"),
        [
            (Rule.TENSOR_PARALLEL, {"tensor_parallel_size": 2}),
            (Rule.FULL_GROUPS, {"data_parallel_size": 9}),
            (Rule.KV_CONSUMER, {"kv_transfer_config": {"kv_role": "kv_both"}}),
            (Rule.GRAPH_MODE, {"enforce_eager": True}),
            (Rule.CONTEXT_PARALLEL, {"prefill_context_parallel_size": 2}),
            (Rule.PREEMPT_OFFLOAD, {"kv_transfer_config": {"kv_role": "kv_consumer", "kv_connector": "X"}}),
            (Rule.CAPTURE_COVERAGE, {"max_num_seqs": 600}),
        ],
    )
    def test_shares_the_preconditions_of_o_proj(self, check, sized, rule, changes):
        report = check(additional_config=sized({Knob.MLP: 2}), moot=(UNBUILT,), **changes)
        finding = next(finding for finding in report.findings if finding.rule is rule)
        assert "mlp_tensor_parallel_size" in finding.message

    def test_needs_the_recompute_scheduler(self, check, sized):
        report = check(additional_config=sized({Knob.MLP: 1}, scheduler_config={}), moot=(UNBUILT,))
        assert rules_of(report) == [Rule.RECOMPUTE_SCHEDULER]

    def test_is_named_beside_o_proj_in_one_finding(self, check, sized):
        config = sized({Knob.OPROJ: 8, Knob.MLP: 4})
        (finding,) = check(additional_config=config, tensor_parallel_size=2, moot=(UNBUILT,)).findings
        assert finding.required == "1 with oproj_tensor_parallel_size=8 and mlp_tensor_parallel_size=4"

    def test_goes_off_together_with_o_proj_where_a_step_is_not_captured(self, check, sized):
        config = sized({Knob.OPROJ: 8, Knob.MLP: 4, Knob.LMHEAD: 2})
        report = check(additional_config=config, max_num_seqs=600, moot=(UNBUILT,))
        assert rules_of(report) == [Rule.CAPTURE_COVERAGE]
        assert report.sizes == {Knob.LMHEAD: 2}
        assert report.oproj_tensor_parallel_size == 0


class TestPcpWeightSharding:
    SWITCHES = ("enable_pcp_o_proj_weight_sharding", "enable_pcp_embedding_lmhead_weight_sharding")

    @pytest.mark.parametrize("value", [True, "true", 1])
    def test_of_o_proj_excludes_its_split(self, check, sized, value):
        o_proj, _ = self.SWITCHES
        (finding,) = check(additional_config=sized({Knob.OPROJ: 8}, **{o_proj: value})).findings
        assert (finding.rule, finding.field) == (Rule.PCP_WEIGHT_SHARDING, f"additional_config.{o_proj}")
        assert check(additional_config=sized({Knob.OPROJ: 1}, **{o_proj: value})).ok
        assert check(additional_config=sized({Knob.OPROJ: 8}, **{o_proj: False})).ok

    @pytest.mark.parametrize("knob", [Knob.EMBEDDING, Knob.LMHEAD])
    def test_of_the_vocabulary_is_on_by_default_and_excludes_its_sizes(self, check, sized, knob):
        _, vocabulary = self.SWITCHES

        def judged(pcp=2, **switch):
            config = sized({knob: 2}, **switch)
            return rules_of(
                check(additional_config=config, prefill_context_parallel_size=pcp, moot=(UNBUILT,))
            )

        assert judged() == judged(**{vocabulary: True}) == [Rule.PCP_WEIGHT_SHARDING]
        assert judged(**{vocabulary: False}) == judged(**{vocabulary: "false"}) == judged(pcp=1) == []


class TestNonBSP:
    def test_excludes_a_size_that_needs_the_recompute_scheduler(self, check, sized):
        for recompute in (True, False):
            scheduler = {"recompute_scheduler_enable": recompute, "nonbsp_config": {"enabled": True}}
            report = check(additional_config=sized({Knob.OPROJ: 1}, scheduler_config=scheduler))
            assert rules_of(report) == [Rule.RECOMPUTE_SCHEDULER] * (not recompute) + [Rule.NONBSP]
            assert report.errors[-1].field.endswith("nonbsp_config.enabled")

    def test_excludes_the_recompute_scheduler_without_any_size(self, check, sized):
        scheduler = {"recompute_scheduler_enable": True, "nonbsp_config": {"enabled": True}}
        assert rules_of(check(additional_config=sized({}, scheduler_config=scheduler))) == [Rule.NONBSP]
        del scheduler["recompute_scheduler_enable"]
        assert check(additional_config=sized({}, scheduler_config=scheduler)).findings == ()

    @pytest.mark.parametrize("nonbsp", [{"enabled": False}, {}, None])
    def test_is_not_seen_where_it_is_off(self, check, sized, nonbsp):
        scheduler = {"recompute_scheduler_enable": True, "nonbsp_config": nonbsp}
        assert check(additional_config=sized({Knob.OPROJ: 8}, scheduler_config=scheduler)).findings == ()


class TestPcpBesideDp:
    @pytest.mark.parametrize(("platform", "found"), [("cuda", True), ("rocm", True), ("npu", False)])
    def test_is_refused_by_platform(self, check, platform, found):
        report = check(size=0, prefill_context_parallel_size=2, device_type=platform)
        assert rules_of(report) == [Rule.PCP_DP_PLATFORM] * found
        assert all(platform in finding.required for finding in report.findings)

    def test_is_about_both_sizes(self, check):
        for changes in ({"prefill_context_parallel_size": 1}, {"data_parallel_size": 1}):
            fields = {"prefill_context_parallel_size": 2, "device_type": "cuda"} | changes
            assert check(size=0, **fields).findings == ()
