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
        speculative_method="mtp",
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


@pytest.fixture
def decode_file(tmp_path, valid):
    """Writes the valid node's file without any fact of its model, with some fields added."""
    facts = ("num_attention_heads", "head_dim", "hidden_size", "is_moe")
    stated = {name: value for name, value in valid.items() if name not in facts}

    def write(**fields):
        path = tmp_path / "decode.json"
        path.write_text(json.dumps(stated | fields))
        return path

    return write


@pytest.fixture
def model_folder(tmp_path):
    """A model's folder beside the file."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(DEEPSEEK_V3))
    return folder


class TestModelOfTheFile:
    """It was asked for, although `model` had said where it is."""

    @pytest.mark.parametrize("model", ["model", "./model", "model/config.json", "model/"])
    @pytest.mark.parametrize("field", ["model", "hf_config"])
    def test_is_read_beside_the_file(self, decode_file, model_folder, field, model):
        deployment = Deployment.from_file(decode_file(**{field: model}))
        assert (deployment.oproj_input_size, deployment.is_moe) == (16384, True)
        assert check_deployment(deployment).not_judged == ()

    def test_is_read_where_an_absolute_path_says(self, decode_file, model_folder):
        for model in (model_folder, model_folder / "config.json"):
            assert Deployment.from_file(decode_file(model=str(model))).is_moe

    def test_is_read_where_the_engine_would_look(self, decode_file, model_folder, tmp_path, monkeypatch):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        model_folder.rename(elsewhere / "model")
        monkeypatch.chdir(elsewhere)
        assert Deployment.from_file(decode_file(model="model")).is_moe

    def test_may_be_spelled_as_on_the_command_line(self, decode_file, model_folder):
        assert Deployment.from_file(decode_file(**{"--model": "model"})).is_moe

    def test_gives_way_to_what_the_file_states(self, decode_file, model_folder):
        stated = decode_file(model="model", is_moe=None, **{"num-attention-heads": 64})
        deployment = Deployment.from_file(stated)
        assert (deployment.num_attention_heads, deployment.head_dim, deployment.is_moe) == (64, 128, True)
        (model_folder / "config.json").write_text("{")
        assert Deployment.from_file(decode_file(model="model", hf_config=DEEPSEEK_V3)).is_moe

    def test_is_described_where_hf_config_path_says(self, decode_file, model_folder, tmp_path, monkeypatch):
        dense = tmp_path / "dense"
        dense.mkdir()
        (dense / "config.json").write_text('{"num_attention_heads": 8, "hidden_size": 64}')
        stated = decode_file(model="dense", hf_config_path="model")
        assert Deployment.from_file(stated).oproj_input_size == 16384
        monkeypatch.chdir(tmp_path)
        command = ["vllm", "serve", "dense", "--hf-config-path", "model"]
        assert Deployment.from_command(command).oproj_input_size == 16384
        assert Deployment.from_command([*command[:-1], "elsewhere"]).oproj_input_size is None

    @pytest.mark.parametrize("model", ["deepseek-ai/DeepSeek-V3", "/models/elsewhere", "weights", 7])
    def test_is_asked_for_where_it_is_not_on_this_machine(self, decode_file, tmp_path, model):
        (tmp_path / "weights").mkdir()
        report = check_deployment(Deployment.from_file(decode_file(model=model)))
        assert [line.partition(":")[0] for line in report.not_judged] == ["rule 6", "rule 7"]

    def test_is_refused_where_it_cannot_be_read(self, decode_file, model_folder):
        with pytest.raises(ConfigError, match=r"absent\.json cannot be read"):
            Deployment.from_file(decode_file(model="absent.json"))
        (model_folder / "config.json").write_text("{")
        with pytest.raises(ConfigError, match=r"config\.json is malformed"):
            Deployment.from_file(decode_file(model="model"))


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
        (
            {"additional_config": {"scheduler_config": {"recompute_scheduler_enabled": True}}},
            "additional_config.scheduler_config has no key 'recompute_scheduler_enabled'",
        ),
        (
            {"additional_config": {"enable_pcp_oproj_weight_sharding": True}},
            "did you mean 'enable_pcp_o_proj_weight_sharding'",
        ),
        ({"recompute_scheduler_enable": True}, "belongs under additional_config.scheduler_config"),
        ({"mlp_tensor_parallel_size": 8}, "belongs under additional_config.finegrained_tp_config"),
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


class TestWidthsOfMlps:
    """Of dense layers and shared experts, by the words of several families."""

    @pytest.mark.parametrize(
        ("config", "widths"),
        [
            ({"intermediate_size": 11008}, (11008,)),
            ({"intermediate_size": 14336, "num_local_experts": 8}, ()),
            (
                {
                    "intermediate_size": 18432,
                    "moe_intermediate_size": 2048,
                    "n_routed_experts": 256,
                    "n_shared_experts": 1,
                    "first_k_dense_replace": 3,
                    "moe_layer_freq": 1,
                },
                (2048, 18432),
            ),
            (
                {
                    "intermediate_size": 5632,
                    "shared_expert_intermediate_size": 20480,
                    "moe_intermediate_size": 2560,
                    "num_experts": 64,
                    "decoder_sparse_step": 1,
                    "mlp_only_layers": [],
                },
                (20480,),
            ),
            ({"intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128}, ()),
            ({"intermediate_size": 6144, "num_experts": 128, "mlp_only_layers": [0]}, (6144,)),
            ({"intermediate_size": 96, "num_experts": 8, "decoder_sparse_step": 2}, (96,)),
            ({"intermediate_size": 96, "num_experts": 8, "moe_layer_freq": [0, 1, 1]}, (96,)),
            ({"intermediate_size": 8, "intermediate_size_mlp": 16, "num_local_experts": 2}, ()),
            ({"num_experts": 8}, None),
        ],
    )
    def test_are_read_from_the_config(self, config, widths):
        assert Deployment(hf_config=config).mlp_intermediate_sizes == widths
