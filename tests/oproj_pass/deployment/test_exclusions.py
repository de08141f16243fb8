"""Rules 18 to 23, and what the sizes of the other roles share with o_proj's."""

import pytest

from oproj_pass.deployment import Knob, Rule, Severity

UNBUILT = Rule.BUILT_SIZES
BUILT = [knob for knob in Knob if knob is not Knob.OLORA]


def rules_of(report):
    return [finding.rule for finding in report.findings]


class TestSizesThatNothingShards:
    """Other sizes passed with tp 4, pp 2 and eager, and nothing was sharded."""

    @pytest.mark.parametrize("size", [1, 2, "8"])
    def test_are_refused_by_name(self, check, sized, size):
        (finding,) = check(additional_config=sized({Knob.OLORA: size})).errors
        assert (finding.rule, finding.severity, finding.value) == (UNBUILT, Severity.ERROR, int(size))
        assert finding.field == f"additional_config.finegrained_tp_config.{Knob.OLORA}"
        assert Knob.OLORA.shards in finding.required

    @pytest.mark.parametrize("size", [0, None])
    def test_are_accepted_when_off(self, check, sized, size):
        assert check(additional_config=sized({Knob.OPROJ: 8, Knob.OLORA: size})).findings == ()

    @pytest.mark.parametrize("knob", BUILT)
    def test_are_none_of_the_built_ones(self, check, sized, knob):
        assert check(additional_config=sized({knob: 8})).findings == ()

    @pytest.mark.parametrize(("widths", "found"), [((), 1), ((2048,), 0), (None, 0)])
    def test_warn_of_an_mlp_where_all_experts_are_routed(self, check, sized, widths, found):
        report = check(additional_config=sized({Knob.MLP: 8}), mlp_intermediate_sizes=widths)
        assert report.ok
        assert rules_of(report) == [UNBUILT] * found
        assert all("routed experts" in finding.remedy for finding in report.findings)


class TestAllSizes:
    @pytest.mark.parametrize("knob", BUILT)
    def test_exclude_pipeline_parallelism(self, check, sized, knob):
        report = check(additional_config=sized({knob: 2}), pipeline_parallel_size=2)
        assert rules_of(report) == [Rule.PIPELINE_PARALLEL]
        assert f"{knob}=2" in report.errors[0].required

    @pytest.mark.parametrize("knob", BUILT)
    def test_exclude_tensor_parallelism(self, check, sized, knob):
        report = check(additional_config=sized({knob: 2}), tensor_parallel_size=4)
        assert rules_of(report) == [Rule.TENSOR_PARALLEL]
        assert f"{knob}=2" in report.errors[0].required


@pytest.mark.parametrize("knob", [Knob.MLP, Knob.EMBEDDING])
class TestMlpAndEmbedding:
    """They exchange as many rows as the step has, as o_proj does."""

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
    def test_share_the_preconditions_of_o_proj(self, check, sized, knob, rule, changes):
        report = check(additional_config=sized({knob: 2}), **changes)
        finding = next(finding for finding in report.findings if finding.rule is rule)
        assert knob in finding.message

    def test_need_the_recompute_scheduler(self, check, sized, knob):
        report = check(additional_config=sized({knob: 1}, scheduler_config={}))
        assert rules_of(report) == [Rule.RECOMPUTE_SCHEDULER]

    def test_are_named_beside_o_proj_in_one_finding(self, check, sized, knob):
        config = sized({Knob.OPROJ: 8, knob: 4})
        (finding,) = check(additional_config=config, tensor_parallel_size=2).findings
        assert finding.required == f"1 with oproj_tensor_parallel_size=8 and {knob}=4"

    def test_go_off_together_with_o_proj_where_a_step_is_not_captured(self, check, sized, knob):
        config = sized({Knob.OPROJ: 8, knob: 4, Knob.LMHEAD: 2})
        report = check(additional_config=config, max_num_seqs=600)
        assert rules_of(report) == [Rule.CAPTURE_COVERAGE]
        assert report.sizes == {Knob.LMHEAD: 2}
        assert report.oproj_tensor_parallel_size == 0


class TestMlpSlices:
    def test_are_equal_in_every_dense_layer_and_shared_expert(self, check, sized):
        report = check(additional_config=sized({Knob.MLP: 8}), mlp_intermediate_sizes=(18432, 2044))
        (finding,) = report.findings
        assert (finding.rule, finding.field, finding.value) == (22, "intermediate_size", 2044)
        assert "mlp_tensor_parallel_size to one of [1, 2, 4]" in finding.remedy

    def test_are_not_judged_without_the_model(self, check, sized):
        (line,) = check(additional_config=sized({Knob.MLP: 8})).not_judged
        assert line.startswith("rule 22: give hf_config")


class TestLmHead:
    """Its rows are those of the sampled tokens, which need no uniform step; all ranks call it together."""

    def test_needs_none_of_the_preconditions_of_o_proj(self, check, sized):
        config = sized({Knob.LMHEAD: 8}, scheduler_config={})
        report = check(additional_config=config, kv_transfer_config=None, enforce_eager=True)
        assert report.findings == ()
        assert report.sizes == {Knob.LMHEAD: 8}

    @pytest.mark.parametrize(
        "speculation",
        [
            {"method": "dflash"},
            {"method": "mtp"},
            {"method": "eagle3", "draft_sample_method": "probabilistic"},
            {"method": "eagle", "use_local_argmax_reduction": True},
            {"method": "dspark", "enable_adaptive_verification": True},
        ],
    )
    def test_refuses_drafts_of_a_model(self, check, sized, speculation):
        (finding,) = check(additional_config=sized({Knob.LMHEAD: 2}), speculative_config=speculation).errors
        assert (finding.rule, finding.field) == (23, "speculative_config.method")
        assert finding.value == speculation["method"]
        assert check(additional_config=sized({Knob.LMHEAD: 1}), speculative_config=speculation).ok

    @pytest.mark.parametrize("method", ["ngram", "suffix"])
    def test_allows_drafts_from_the_requests_own_tokens(self, check, sized, method):
        speculation = {"method": method, "num_speculative_tokens": 2}
        report = check(additional_config=sized({Knob.LMHEAD: 2}), speculative_config=speculation)
        assert report.findings == report.not_judged == ()

    def test_says_when_the_method_is_not_stated(self, check, sized):
        report = check(additional_config=sized({Knob.LMHEAD: 2}), num_speculative_tokens=2)
        assert report.not_judged == ("rule 23: give speculative_config.method",)


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
            return rules_of(check(additional_config=config, prefill_context_parallel_size=pcp))

        apart = [Rule.CONTEXT_PARALLEL] * (knob is Knob.EMBEDDING)  # with PCP, whatever its switch
        assert judged() == judged(**{vocabulary: True}) == [*apart, Rule.PCP_WEIGHT_SHARDING]
        assert judged(**{vocabulary: False}) == judged(**{vocabulary: "false"}) == apart
        assert judged(pcp=1) == []


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
