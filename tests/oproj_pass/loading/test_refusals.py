"""Whatever does not fit is refused with the rank, the file and the tensor, before the model is touched."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import oproj_pass
from tests.support.fake import fake_world
from tests.support.formats import AWQ
from tests.support.models import decoder

STEP = (torch.zeros(1, 32),)
FILE, INDEX = "model.safetensors", "model.safetensors.index.json"


def load(model, folder, *, size=2, example_args=STEP, **options):
    with fake_world(size, rank=1):
        return oproj_pass.load_sharded(
            model, folder, {"oproj_tensor_parallel_size": size}, example_args=example_args, **options
        )


def is_untouched(model):
    return all(parameter.is_meta for parameter in model.parameters())


def with_tensor(name, value):
    def change(folder):
        weights = load_file(folder / FILE)
        weights.pop(name, None)
        save_file(weights if value is None else {**weights, name: value}, folder / FILE)

    return change


def cut_short(folder):
    content = (folder / FILE).read_bytes()
    (folder / FILE).write_bytes(content[:-100])


def not_safetensors(folder):
    (folder / FILE).write_bytes(b"PK")


def other_format(folder):
    (folder / FILE).rename(folder / "pytorch_model.bin")


def index(**weight_map):
    def change(folder):
        (folder / FILE).rename(folder / "a.safetensors")
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    return change


def broken_index(folder):
    (folder / FILE).unlink()
    (folder / INDEX).write_text("{")


UP = "layers.0.up.weight"
CASES = {
    "a missing tensor": (with_tensor(UP, None), [UP, "missing", "Decoder"]),
    "an unexpected tensor": (with_tensor("mtp.weight", torch.ones(1)), ["mtp.weight", "in `ignore`"]),
    "another shape": (with_tensor(UP, torch.ones(64, 31)), [FILE, UP, "[64, 31]", "[64, 32]"]),
    "another type": (with_tensor(UP, torch.ones(64, 32, dtype=torch.int8)), [FILE, UP, "int8", "float32"]),
    "a file cut short": (cut_short, [FILE, "cannot be read as a safetensors file"]),
    "a file that is none": (not_safetensors, [FILE, "cannot be read as a safetensors file"]),
    "a folder without safetensors": (other_format, [FILE, INDEX, "required"]),
    "an index of a missing file": (index(x="gone.safetensors"), ["gone.safetensors", "cannot be read"]),
    "an index of another checkpoint": (index(x="a.safetensors"), [INDEX, "lists x in a.safetensors"]),
    "an index that is no JSON": (broken_index, [INDEX, "weight_map"]),
    "an index without a map": (index(), ["missing"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refuses_a_checkpoint_with(case, folder, empty):
    change, said = CASES[case]
    change(folder)
    with pytest.raises(oproj_pass.ConfigError, match="rank 1") as refusal:
        load(empty, folder)
    assert all(part in str(refusal.value) for part in said), refusal.value
    assert is_untouched(empty)


def test_refuses_a_folder_that_does_not_exist(tmp_path, empty):
    with pytest.raises(oproj_pass.ConfigError, match="has to be downloaded first"):
        load(empty, tmp_path / "org" / "model")


def test_says_what_a_checkpoint_in_other_names_holds(tmp_path, full, empty):
    save_file({f"model.{name}": value for name, value in full.state_dict().items()}, tmp_path / FILE)
    with pytest.raises(oproj_pass.ConfigError, match=r"and 11 more missing.*It holds model\.layers\.0"):
        load(empty, tmp_path)


def test_refuses_a_size_that_does_not_divide_k(folder, empty):
    with pytest.raises(oproj_pass.ConfigError, match=r"layers\.0\.attn\.o_proj: K = 32 .* 3 ranks"):
        load(empty, folder, size=3)
    assert is_untouched(empty)


def test_refuses_a_cut_through_a_group_of_a_quantised_weight(tmp_path):
    def build():
        model = decoder(heads=8, layers=1)
        model.layers[0].attn.o_proj = AWQ(model.layers[0].attn.o_proj.weight)
        return model

    save_file(build().state_dict(), tmp_path / FILE)
    with torch.device("meta"):
        model = build()
    with pytest.raises(oproj_pass.ConfigError, match=r"K = 64 .* 8 ranks: 16 consecutive features .* 2, 4\."):
        load(model, tmp_path, size=8)
    assert is_untouched(model)


def test_refuses_a_model_with_nothing_to_shard(tmp_path):
    model = nn.Sequential(nn.Linear(32, 32))
    save_file(model.state_dict(), tmp_path / FILE)
    with pytest.raises(oproj_pass.SiteMismatchError, match="Sequential has no attention output projection"):
        load(model, tmp_path)


def test_asks_for_example_inputs_of_a_model_without_input_ids(folder, empty):
    with pytest.raises(oproj_pass.ConfigError, match=r"takes x, and no `input_ids`.*`example_args`"):
        load(empty, folder, example_args=())


def test_says_which_inputs_a_model_did_not_take(folder, empty):
    with pytest.raises(oproj_pass.ConfigError, match=r"Decoder cannot be run .*`example_args`"):
        load(empty, folder, example_args=(torch.zeros(1, 31),))
    assert is_untouched(empty)


def test_refuses_a_buffer_whose_values_are_lost(folder, empty):
    empty.layers[0].register_buffer("inv_freq", torch.empty(4, device="meta"), persistent=False)
    with pytest.raises(oproj_pass.ConfigError, match=r"layers\.0\.inv_freq .*init_empty_weights"):
        load(empty, folder)


def test_refuses_tied_tensors_that_differ(folder, empty):
    empty.layers[1].up.weight = empty.layers[0].up.weight
    with pytest.raises(
        oproj_pass.ConfigError, match=r"layers\.1\.up\.weight differs from layers\.0\.up\.weight"
    ):
        load(empty, folder)


def test_refuses_to_load_twice(folder, empty):
    load(empty, folder)
    with pytest.raises(oproj_pass.WeightReleasedError, match="load_state_dict"):
        load(empty, folder)


def test_refuses_what_is_no_module(folder):
    with pytest.raises(oproj_pass.ConfigError, match=r"required: a torch\.nn\.Module"):
        load(decoder, folder)


def test_refuses_a_size_without_a_process_group(folder, empty):
    with pytest.raises(oproj_pass.ConfigError, match="init_process_group"):
        oproj_pass.load_sharded(empty, folder, {"oproj_tensor_parallel_size": 2}, example_args=STEP)
