import json

import pytest
import yaml

from oproj_pass.deployment import CUDAGraphMode, Deployment, check_deployment
from oproj_pass.errors import ConfigError

DEEPSEEK_V3 = {
    "num_attention_heads": 128,
    "hidden_size": 7168,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "kv_lora_rank": 512,
    "n_routed_experts": 256,
}


def test_sections_may_be_json_strings(valid):
    expected = Deployment(**valid)
    for name in ("additional_config", "kv_transfer_config"):
        valid[name] = json.dumps(valid[name])
    assert Deployment(**valid) == expected


def test_names_may_be_written_as_on_the_command_line():
    deployment = Deployment.from_dict(
        {"--tensor-parallel-size": 2, "max-num-seqs": 16, "gpu-memory-utilization": 0.9}
    )
    assert (deployment.tensor_parallel_size, deployment.max_num_seqs) == (2, 16)


def test_nested_sections_are_the_flat_fields():
    nested = Deployment(
        compilation_config={
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": [1, 8],
            "mode": 3,
            "cudagraph_num_of_warmups": 1,
        },
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
    )
    assert nested == Deployment(
        cudagraph_mode="FULL_DECODE_ONLY",
        cudagraph_capture_sizes=[1, 8],
        compilation_mode=3,
        num_speculative_tokens=3,
    )


@pytest.mark.parametrize(
    ("config", "width", "is_moe"),
    [
        (DEEPSEEK_V3, 16384, True),
        ({"text_config": DEEPSEEK_V3}, 16384, True),
        ({"num_attention_heads": 32, "hidden_size": 4096}, 4096, False),
        (
            {"num_attention_heads": 64, "hidden_size": 4096, "head_dim": 128, "num_local_experts": 8},
            8192,
            True,
        ),
        ({"num_attention_heads": 8, "hidden_size": 64, "num_experts": 0}, 64, False),
        ({"num_attention_heads": 8, "hidden_size": 64, "moe_num_experts": [0, 64]}, 64, True),
        ({"num_attention_heads": 8, "hidden_size": 64, "block_configs": [{"n_routed_experts": 8}]}, 64, True),
    ],
)
def test_model_facts_come_from_the_hugging_face_config(config, width, is_moe):
    deployment = Deployment(hf_config=config)
    assert (deployment.oproj_input_size, deployment.is_moe) == (width, is_moe)


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
def test_reads_a_file_and_the_model_config_beside_it(tmp_path, valid, suffix):
    facts = ("num_attention_heads", "head_dim", "hidden_size", "is_moe")
    fields = {name: value for name, value in valid.items() if name not in facts} | {
        "hf_config": "model/config.json"
    }
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    path = tmp_path / f"decode{suffix}"
    path.write_text(json.dumps(fields) if suffix == ".json" else yaml.safe_dump(fields))
    report = check_deployment(Deployment.from_file(path))
    assert report.findings == ()
    assert report.not_judged == ()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("d.json", "{", "malformed"),
        ("d.yaml", "a: [", "malformed"),
        ("d.yaml", "- 1", "mapping"),
        ("d.toml", "", ".json"),
    ],
)
def test_refuses_a_file_it_cannot_read(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=says) as caught:
        Deployment.from_file(tmp_path / name)
    assert name in str(caught.value)


def test_refuses_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.json"):
        Deployment.from_file(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"tensor_paralel_size": 2}, "did you mean 'tensor_parallel_size'"),
        ({"max-num-seq": 2}, "did you mean 'max_num_seqs'"),
        ({"oproj_tensor_parallel_size": 8}, "belongs under additional_config.finegrained_tp_config"),
        ({"kv_role": "kv_consumer"}, "belongs under kv_transfer_config"),
        ({"zebra": 1}, "'zebra' is not a deployment field"),
        ({"compilation_config": {"cudagraph_mod": "NONE"}}, "did you mean 'cudagraph_mode'"),
        ({"speculative_config": {"num_speculative_token": 1}}, "did you mean 'num_speculative_tokens'"),
        ({"kv_transfer_config": {"kv_conector": "X"}}, "did you mean 'kv_connector'"),
        (
            {"additional_config": {"recompute_scheduler_enabled": True}},
            "did you mean 'recompute_scheduler_enable'",
        ),
        ({"additional_config": "{'a': 1}"}, "additional_config is not valid JSON"),
        ({"additional_config": [1]}, "additional_config is a list"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0"),
        ({"tensor_parallel_size": True}, "tensor_parallel_size is True"),
        ({"max_num_seqs": "many"}, "max_num_seqs is 'many'"),
        ({"cudagraph_mode": "FUL"}, "FULL_DECODE_ONLY"),
        ({"compilation_config": {"mode": 9}}, "compilation_mode is 9"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "at least max_num_seqs"),
        ({"cudagraph_capture_sizes": [1, 8], "max_cudagraph_capture_size": 16}, "Give one of the two"),
        ({"cudagraph_mode": "FULL", "compilation_config": {"cudagraph_mode": "NONE"}}, "given twice"),
        ({"num_speculative_tokens": 1, "speculative_config": {"num_speculative_tokens": 2}}, "given twice"),
    ],
)
def test_refuses_a_wrong_name_or_value(fields, says):
    with pytest.raises(ConfigError) as caught:
        Deployment(**fields)
    assert says in str(caught.value)


def test_names_every_unknown_field_at_once():
    with pytest.raises(ConfigError, match=r"'zebra'.*'yak'"):
        Deployment(zebra=1, yak=2)


def test_two_spellings_that_agree_are_one():
    deployment = Deployment(cudagraph_mode="FULL", compilation_config={"cudagraph_mode": "FULL"})
    assert deployment.cudagraph_mode is CUDAGraphMode.FULL
