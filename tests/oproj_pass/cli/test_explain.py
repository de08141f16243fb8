"""`oproj explain`: a model from its config.json alone."""

import json

import pytest

pytest.importorskip("transformers")


def test_explains_a_config_file(oproj, llama):
    result = oproj("explain", llama(), "--oproj-tensor-parallel-size", 4, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [row["path"] for row in report["projections"]] == [
        f"model.layers.{i}.self_attn.o_proj" for i in range(2)
    ]
    assert {row["dtype"] for row in report["projections"]} == {"bfloat16"}
    assert report["sizes"]["4"]["saved_nbytes"] == 2 * 32 * 32 * 2 * 3 // 4


def test_explains_the_folder_that_holds_it(oproj, llama):
    result = oproj("explain", llama().parent, "--dtype", "float32", "--exclude", "model.layers.0.*")
    assert result.exit_code == 0
    assert "model.layers.1.self_attn.o_proj" in result.stdout
    assert "f32[32, 32]" in result.stdout
    assert "matches an `exclude` glob" in result.stdout


def test_writes_one_page_that_loads_nothing(oproj, llama, tmp_path):
    page = tmp_path / "page.html"
    result = oproj("explain", llama(), "--dtype", "int8", "--html", page)
    text = page.read_text(encoding="utf-8")
    assert not result.stdout
    assert "model.layers.0-1.self_attn.o_proj" in text
    assert "Weights as the checkpoint stores them: int8" in text
    assert "http" not in text.replace("http-equiv", "")


def test_counts_a_quantised_checkpoints_bytes_and_says_so(oproj, llama):
    quantisation = {
        "quant_method": "fp8",
        "weight_block_size": [16, 16],
        "modules_to_not_convert": ["layers.1"],
    }
    report = json.loads(oproj("explain", llama(quantization_config=quantisation), "--json").stdout)
    assert [(row["scheme"], row["nbytes"]) for row in report["projections"]] == [
        ("fp8", 32 * 32 + 4 * 4),
        ("dense", 2 * 32 * 32),
    ]
    assert report["stored"].startswith("Weights as the checkpoint stores them: fp8 in blocks of 16 x 16.")
    shown = oproj("explain", llama(quantization_config=quantisation))
    assert report["stored"] in shown.stdout
    assert not shown.stderr


@pytest.mark.parametrize(("dtype", "nbytes"), [("fp8", 32 * 32), ("float32", 4 * 32 * 32)])
def test_a_dtype_wins_over_the_config(oproj, llama, dtype, nbytes):
    path = llama(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32})
    report = json.loads(oproj("explain", path, "--dtype", dtype, "--json").stdout)
    assert {row["nbytes"] for row in report["projections"]} == {nbytes}


@pytest.mark.parametrize("arguments", [("--oproj-tensor-parallel-size", 5), ("--exclude", "*")])
def test_exits_1_where_nothing_can_be_sharded(oproj, llama, arguments):
    assert oproj("explain", llama(), *arguments).exit_code == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "unheard_of"}, "model_type is 'unheard_of', required"),
        ({"num_attention_heads": 0}, "config.json: ZeroDivisionError"),
        ({"quantization_config": {"quant_method": "novel"}}, "quant_method = 'novel' is not one"),
    ],
)
def test_exits_2_for_a_config_that_makes_no_model(oproj, llama, changes, message):
    result = oproj("explain", llama(**changes))
    assert result.exit_code == 2
    assert message in result.stderr


def test_says_how_to_get_transformers(oproj, llama, monkeypatch):
    monkeypatch.setattr("oproj_pass.cli.hf_model.find_spec", lambda name: None)
    result = oproj("explain", llama())
    assert result.exit_code == 2
    assert "pip install 'transformers>=5,<6'" in result.stderr
