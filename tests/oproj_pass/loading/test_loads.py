"""Each rank holds its slice of every projection, and all of everything else."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import oproj_pass
from oproj_pass.weights.released import Released, ReleasedBuffer
from tests.support.fake import fake_world
from tests.support.models import PROJECTIONS, Decoder, decoder

STEP = (torch.zeros(1, 32),)
TWO = {"oproj_tensor_parallel_size": 2}


def load(model, folder, *, rank=0, size=2, **options):
    with fake_world(size, rank):
        config = {"oproj_tensor_parallel_size": size}
        return oproj_pass.load_sharded(model, folder, config, **{"example_args": STEP, **options})


def on_meta(**options):
    with torch.device("meta"):
        return decoder(**options)


def shard(model, layer):
    return model.layers[layer].attn.o_proj.weight.shard.tensor


def held(model):
    """What this rank holds of each stored tensor."""
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    return {name: t.shard.tensor if isinstance(t, Released) else t.detach() for name, t in tensors.items()}


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize(("size", "rank"), [(2, 1), (4, 2)])
def test_reads_the_ranks_own_slice_and_the_rest_whole(tmp_path, projection, size, rank):
    full = decoder(projection=projection).state_dict()
    save_file(full, tmp_path / "model.safetensors")
    model = on_meta(projection=projection)
    report = load(model, tmp_path, rank=rank, size=size)
    dim, part = (0 if projection == "addmm" else 1), 32 // size
    assert [weight.path for weight in report.weights] == [f"layers.{i}.attn.o_proj.weight" for i in range(2)]
    assert report.kept_nbytes * size == report.full_nbytes
    for name, value in held(model).items():
        expected = full[name].narrow(dim, rank * part, part) if "o_proj.weight" in name else full[name]
        assert torch.equal(value, expected), name


def test_names_every_layer_in_a_model_with_graph_breaks(folder):
    report = load(on_meta(graph_breaks=True), folder)
    assert [weight.path for weight in report.weights] == [f"layers.{i}.attn.o_proj.weight" for i in range(2)]


def test_reads_the_files_that_an_index_lists(tmp_path, full, empty):
    weights = full.state_dict()
    names = sorted(weights)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, of_file in files.items():
        save_file({name: weights[name] for name in of_file}, tmp_path / file)
    index = {"weight_map": {name: file for file, of_file in files.items() for name in of_file}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    load(empty, tmp_path)
    whole = {name: value for name, value in held(empty).items() if "o_proj.weight" not in name}
    assert all(torch.equal(value, weights[name]) for name, value in whole.items())
    assert torch.equal(shard(empty, 0), weights["layers.0.attn.o_proj.weight"][:, :16])


def test_replaces_the_values_of_a_model_that_has_some(folder, full):
    model = decoder(layers=2)
    for parameter in model.parameters():
        parameter.zero_()
    load(model, folder)
    assert torch.equal(held(model)["layers.1.up.weight"], full.layers[1].up.weight)
    assert torch.equal(shard(model, 1), full.layers[1].attn.o_proj.weight[:, :16])


def test_leaves_an_excluded_projection_whole(folder, empty, full):
    with fake_world(2):
        oproj_pass.load_sharded(empty, folder, {**TWO, "exclude": "layers.0.*"}, example_args=STEP)
    assert torch.equal(empty.layers[0].attn.o_proj.weight, full.layers[0].attn.o_proj.weight)
    assert isinstance(empty.layers[1].attn.o_proj.weight, Released)


@pytest.mark.parametrize("size", ["auto", 0, 1])
def test_loads_whole_where_nothing_is_shared(folder, empty, full, size):
    report = oproj_pass.load_sharded(empty, folder, {"oproj_tensor_parallel_size": size}, example_args=STEP)
    assert report.weights == ()
    assert all(torch.equal(value, full.state_dict()[name]) for name, value in held(empty).items())


def test_gives_floating_point_the_models_type(folder, full):
    model = on_meta(dtype=torch.bfloat16)
    load(model, folder)
    assert {value.dtype for value in held(model).values()} == {torch.bfloat16}
    assert torch.equal(held(model)["layers.0.up.weight"], full.layers[0].up.weight.bfloat16())


def test_keeps_the_order_of_memory_that_the_model_has(folder, empty):
    weight = torch.empty(32, 32, device="meta").t()
    empty.layers[0].attn.o_proj.weight = nn.Parameter(weight, requires_grad=False)
    load(empty, folder)
    loaded = empty.layers[0].attn.o_proj.weight
    assert loaded.stride() == weight.stride()
    assert loaded.shard.tensor.dim_order() == weight.dim_order()


class Tied(nn.Module):
    """A decoder whose head is its embedding, with a table that checkpoints leave out."""

    def __init__(self, *, tied=True):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.body = decoder()
        self.head = nn.Linear(32, 50, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((1,), 2.0, device="cpu"), persistent=False)

    def forward(self, input_ids, use_cache=True):
        assert not use_cache
        return self.head(self.body(self.embedding(input_ids) * self.scale))


def test_keeps_tied_tensors_tied_and_other_buffers_as_they_are(tmp_path):
    full = Tied()
    weights = full.state_dict()
    del weights["head.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = Tied()
    load(model, tmp_path, example_args=())
    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.head.weight, full.embedding.weight)
    assert model.scale.item() == 2
    assert len(oproj_pass.shard_report(model).weights) == 2


class QuantisedProjection(nn.Module):
    """int8 weight [H, K] and float scale [H], in buffers as exporters keep them, or in parameters."""

    def __init__(self, *, buffers):
        super().__init__()
        weight, scale = torch.randint(-99, 99, (32, 32)).to(torch.int8), torch.rand(32)
        if buffers:
            self.register_buffer("weight", weight)
            self.register_buffer("scale", scale)
        else:
            self.weight = nn.Parameter(weight, requires_grad=False)
            self.scale = nn.Parameter(scale, requires_grad=False)

    def forward(self, x):
        rows = x.flatten(0, -2)
        row_scale = rows.abs().amax(-1, keepdim=True) / 127
        q = (rows / row_scale).round().clamp(-128, 127).to(torch.int8)
        return (torch._int_mm(q, self.weight.t()) * row_scale * self.scale).view(*x.shape[:-1], -1)


@pytest.mark.parametrize("buffers", [False, True])
def test_reads_slices_of_quantised_weights_in_parameters_and_buffers(tmp_path, buffers):
    def build():
        model = Decoder(layers=1).eval().requires_grad_(False)
        model.layers[0].attn.o_proj = QuantisedProjection(buffers=buffers)
        return model

    full = build()
    save_file(full.state_dict(), tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = build()
    load(model, tmp_path, rank=1, example_args=(torch.zeros(20, 32),))
    projection, expected = model.layers[0].attn.o_proj, full.layers[0].attn.o_proj
    assert isinstance(projection.weight, ReleasedBuffer) == buffers
    assert torch.equal(projection.weight.shard.tensor, expected.weight[:, 16:])
    assert torch.equal(projection.scale, expected.scale)


def test_ignores_what_it_is_told_to(folder, empty):
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "mtp.up.weight": torch.ones(2)}, folder / "model.safetensors")
    load(empty, folder, ignore=("mtp.*",))
    assert isinstance(empty.layers[0].attn.o_proj.weight, Released)


def test_changes_neither_the_models_mode_nor_the_random_state(folder, empty):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    empty.train()
    load(empty, folder)
    assert empty.training
    assert torch.equal(torch.rand(3), expected)


def test_logs_its_progress(folder, empty, caplog):
    with caplog.at_level(logging.INFO, logger="oproj_pass.loading"):
        load(empty, folder)
    assert "model.safetensors: loading, 0 of 16 tensors" in caplog.text
    assert "16 tensors loaded" in caplog.text
