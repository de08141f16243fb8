"""A model loaded by slices computes what the full one does, and is not sharded a second time."""

import copy

import pytest
import torch
from safetensors.torch import save_file

import oproj_pass
from oproj_pass.weights.memory_report import stored_tensors
from oproj_pass.weights.released import Released
from tests.support.models import PROJECTIONS, decoder, rows

pytestmark = pytest.mark.distributed


def save(folder, parts=0, **options):
    """The decoder's checkpoint; with ``parts``, each projection's slices are moved on by one rank."""
    weights = decoder(**options).state_dict()
    for name, value in weights.items():
        if parts and name.endswith("o_proj.weight"):
            dim = 0 if options.get("projection") == "addmm" else 1
            weights[name] = value.roll(value.shape[dim] // parts, dim)
    save_file(weights, folder / "model.safetensors")
    return folder


def shards_of(model):
    return {
        name: weight.shard.tensor for name, weight in stored_tensors(model) if isinstance(weight, Released)
    }


@torch.inference_mode()
def loaded_and_run(folder, options):
    with torch.device("meta"):
        model = decoder(**options)
    oproj_pass.load_sharded(model, folder, example_args=(torch.zeros(1, 32),))
    loaded = shards_of(model)
    addresses = {name: shard.data_ptr() for name, shard in loaded.items()}
    whole = not options.get("graph_breaks")
    step = torch.compile(model, backend="oproj_npu", fullgraph=whole, dynamic=False)
    reference = decoder(**options)
    error = 0.0
    for tokens in (3, 5):
        x = rows(tokens, 32, dtype=options.get("dtype", torch.float32))
        error = max(error, (step(x) - reference(x)).abs().max().item())
    kept = {name: shard.data_ptr() for name, shard in shards_of(model).items()} == addresses
    same = all(shards_of(model)[name] is shard for name, shard in loaded.items())
    return error, len(loaded), kept and same


MODELS = {
    **{name: {"projection": name} for name in PROJECTIONS},
    "graph breaks": {"graph_breaks": True},
    "bfloat16": {"dtype": torch.bfloat16},
}


@pytest.mark.parametrize("model", MODELS)
def test_computes_what_the_full_model_does_with_the_shards_it_loaded(two_ranks, tmp_path, model):
    options = MODELS[model]
    folder = save(tmp_path, **options)
    for error, count, kept in two_ranks.run(loaded_and_run, folder, options):
        assert error <= (0.1 if "dtype" in options else 1e-5)
        assert count == 2
        assert kept


def test_loads_by_slices_over_four_ranks(four_ranks, tmp_path):
    for error, count, kept in four_ranks.run(loaded_and_run, save(tmp_path), {}):
        assert (error <= 1e-5, count, kept) == (True, 2, True)


def test_differs_where_a_rank_has_anothers_slice(two_ranks, tmp_path):
    """The control of the tests above."""
    folder = save(tmp_path, parts=2)
    assert all(error > 0.01 for error, _, _ in two_ranks.run(loaded_and_run, folder, {}))


@torch.inference_mode()
def gathered_and_reloaded(folder):
    with torch.device("meta"):
        model = decoder()
    oproj_pass.load_sharded(model, folder, example_args=(torch.zeros(1, 32),))
    original, x = decoder(), rows(3, 32)
    gathered = oproj_pass.full_state_dict(model)
    whole = all(torch.equal(value, original.state_dict()[name]) for name, value in gathered.items())
    other = copy.deepcopy(original)
    for parameter in other.parameters():
        parameter.mul_(0.5)
    step = torch.compile(model, backend="oproj_npu", fullgraph=True)
    before = (step(x) - original(x)).abs().max().item()
    model.load_state_dict(other.state_dict())
    return whole, before, (step(x) - other(x)).abs().max().item()


def test_gathers_and_takes_full_state_dicts_like_any_sharded_model(two_ranks, tmp_path):
    for whole, before, after in two_ranks.run(gathered_and_reloaded, save(tmp_path)):
        assert whole
        assert max(before, after) <= 1e-5


@torch.inference_mode()
def loaded_one_way_compiled_another(folder):
    with torch.device("meta"):
        model = decoder()
    oproj_pass.load_sharded(
        model, folder, {"oproj_tensor_parallel_size": 2}, example_args=(torch.zeros(1, 32),)
    )
    step = torch.compile(model, backend="oproj_npu", options={"oproj_tensor_parallel_size": 4})
    step(rows(3, 32))


def test_refuses_to_compile_with_another_size_than_loaded(four_ranks, tmp_path):
    for kind, message in four_ranks.outcomes(loaded_one_way_compiled_another, save(tmp_path)):
        assert kind == "error"
        assert "ConfigError" in message
        assert "is already sharded along dimension 1 over ranks" in message
