"""`Deployment.from_vllm` on objects shaped like vLLM's, whose enums are not ours."""

import enum
from types import SimpleNamespace

import pytest

from oproj_pass.deployment import CUDAGraphMode, Deployment, check_deployment
from oproj_pass.errors import ConfigError


class VllmGraphMode(enum.Enum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = (FULL, NONE)
    FULL_AND_PIECEWISE = (FULL, PIECEWISE)


class VllmCompilationMode(enum.IntEnum):
    NONE = 0
    STOCK_TORCH_COMPILE = 1
    DYNAMO_TRACE_ONCE = 2
    VLLM_COMPILE = 3


@pytest.fixture
def vllm_config(valid):
    kv = valid["kv_transfer_config"]
    return SimpleNamespace(
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            data_parallel_size=8,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            enable_expert_parallel=True,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=16, max_num_batched_tokens=4096, policy="fcfs"),
        compilation_config=SimpleNamespace(
            mode=VllmCompilationMode.VLLM_COMPILE,
            backend="",
            cudagraph_mode=VllmGraphMode.FULL_DECODE_ONLY,
            cudagraph_capture_sizes=[1, 2, 4, 8, 16],
            max_cudagraph_capture_size=16,
        ),
        model_config=SimpleNamespace(
            enforce_eager=False,
            hf_text_config=SimpleNamespace(
                num_attention_heads=128,
                hidden_size=7168,
                kv_lora_rank=512,
                v_head_dim=128,
                n_routed_experts=256,
            ),
        ),
        kv_transfer_config=SimpleNamespace(**kv, engine_id="0", kv_port=14579),
        speculative_config=None,
        device_config=SimpleNamespace(device_type="npu"),
        additional_config=valid["additional_config"],
    )


def test_reads_every_field(vllm_config):
    deployment = Deployment.from_vllm(vllm_config)
    assert deployment.data_parallel_size == 8
    assert deployment.cudagraph_mode is CUDAGraphMode.FULL_DECODE_ONLY
    assert deployment.cudagraph_capture_sizes == (1, 2, 4, 8, 16)
    assert deployment.oproj_input_size == 16384
    assert deployment.is_moe
    report = check_deployment(deployment)
    assert report.findings == ()
    assert report.oproj_tensor_parallel_size == 8


def test_reads_speculative_tokens(vllm_config):
    vllm_config.speculative_config = SimpleNamespace(num_speculative_tokens=3, method="mtp")
    report = check_deployment(Deployment.from_vllm(vllm_config))
    assert [finding.rule for finding in report.findings] == [13]  # 16 requests of 4 tokens, 16 captured


def test_judges_the_final_sizes_and_adds_none(vllm_config):
    vllm_config.scheduler_config.max_num_seqs = 12
    vllm_config.compilation_config.cudagraph_capture_sizes = [1, 2, 4, 8]
    vllm_config.compilation_config.max_cudagraph_capture_size = 8
    report = check_deployment(Deployment.from_vllm(vllm_config))
    assert [finding.rule for finding in report.findings] == [13]


def test_takes_the_final_sizes_over_a_ceiling_that_no_longer_holds(vllm_config):
    vllm_config.compilation_config.max_cudagraph_capture_size = 512
    deployment = Deployment.from_vllm(vllm_config)
    assert deployment.cudagraph_capture_sizes == (1, 2, 4, 8, 16)
    assert deployment.max_cudagraph_capture_size is None


def test_finds_what_the_platform_hook_did(vllm_config):
    """After vllm-ascend has dropped mode=2, backend="oproj_npu"."""
    config = vllm_config.compilation_config
    config.mode, config.backend = VllmCompilationMode.NONE, "oproj_npu"
    config.cudagraph_mode, config.cudagraph_capture_sizes = VllmGraphMode.NONE, []
    config.max_cudagraph_capture_size = 0
    (finding,) = check_deployment(Deployment.from_vllm(vllm_config)).errors
    assert (finding.rule, finding.value) == (8, "NONE")
    assert "oproj_npu" in finding.remedy


def test_accepts_a_release_without_context_parallelism_and_a_node_without_transfer(vllm_config):
    del vllm_config.parallel_config.prefill_context_parallel_size
    vllm_config.kv_transfer_config = None
    vllm_config.additional_config = {}
    assert check_deployment(Deployment.from_vllm(vllm_config)).findings == ()


@pytest.mark.parametrize(
    "section", ["parallel_config", "scheduler_config", "compilation_config", "model_config"]
)
def test_refuses_an_object_of_another_shape(vllm_config, section):
    delattr(vllm_config, section)
    with pytest.raises(ConfigError, match=section):
        Deployment.from_vllm(vllm_config)


def test_reads_attributes_only_and_changes_nothing(vllm_config):
    before = repr(vllm_config)
    check_deployment(Deployment.from_vllm(vllm_config))
    assert repr(vllm_config) == before
