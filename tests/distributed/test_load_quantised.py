"""Quantised checkpoints, loaded by slices: each bit as it is stored, and the full model's results."""

import pytest
import torch
from safetensors.torch import save_file

import oproj_pass
from oproj_pass.weights.released import Released
from tests.support.formats import FORMATS, GROUPED, ChannelInt8, channel_scales, to_int8
from tests.support.models import decoder, rows

pytestmark = pytest.mark.distributed
SIZES = {"layers": 1, "hidden": 32, "heads": 8, "head_dim": 8}


def quantised(kind):
    model = decoder(**SIZES)
    for layer in model.layers:
        layer.attn.o_proj = kind(layer.attn.o_proj.weight)
    return model


def on_meta(kind):
    with torch.device("meta"):
        return quantised(kind)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint of every format."""
    folders = {kind: tmp_path_factory.mktemp(kind.__name__) for kind in FORMATS}
    for kind, folder in folders.items():
        save_file(quantised(kind).state_dict(), folder / "model.safetensors")
    return folders


@torch.inference_mode()
def loaded(folders, moved):
    """By format: the largest error, and the tensors that are slices, as this rank has them.

    ``moved``: every rank takes the slices of the rank before it.
    """
    return {kind.__name__: loaded_one(kind, folder, moved) for kind, folder in folders.items()}


def loaded_one(kind, folder, moved):
    torch._dynamo.reset()
    model, reference = on_meta(kind), quantised(kind)
    oproj_pass.load_sharded(model, folder, example_args=(torch.zeros(4, 32),))
    if moved:
        take_the_slices_of_the_rank_before(model)
    step, x = torch.compile(model, backend="oproj_npu", fullgraph=True), rows(3, 32)
    error = (step(x) - reference(x)).abs().max().item()
    o_proj = dict(model.layers[0].attn.o_proj.named_parameters())
    return error, {name: w.shard.tensor for name, w in o_proj.items() if isinstance(w, Released)}


def take_the_slices_of_the_rank_before(model):
    full = oproj_pass.full_state_dict(model)
    for name, weight in model.named_parameters():
        if isinstance(weight, Released):
            shard = weight.shard
            part = shard.tensor.shape[shard.placement.dim]
            moved = full[name].view(torch.uint8) if shard.tensor.dtype.itemsize == 1 else full[name]
            weight.data.copy_(moved.roll(part, shard.placement.dim).view(shard.tensor.dtype))


@pytest.fixture(scope="module", params=[2, 4])
def facts(request, two_ranks, four_ranks, folders):
    pool = two_ranks if request.param == 2 else four_ranks
    return pool.run(loaded, folders, False, timeout=300)


@pytest.fixture(scope="module")
def moved_facts(two_ranks, folders):
    return two_ranks.run(loaded, folders, True, timeout=300)


@pytest.mark.parametrize("kind", FORMATS)
def test_computes_what_the_full_model_does(facts, kind):
    assert all(by_kind[kind.__name__][0] < 1e-5 for by_kind in facts)


@pytest.mark.parametrize("kind", FORMATS)
def test_differs_with_the_slices_of_another_rank(moved_facts, kind):
    """The control of the test above."""
    assert max(by_kind[kind.__name__][0] for by_kind in moved_facts) > 1e-2


@pytest.mark.parametrize("kind", FORMATS)
def test_holds_the_stored_bits_of_its_own_slice(facts, kind):
    full = dict(quantised(kind).layers[0].attn.o_proj.named_parameters())
    for rank, by_kind in enumerate(facts):
        shards = by_kind[kind.__name__][1]
        assert set(shards) == set(dict(kind.cut))
        for name, dim in kind.cut:
            expected = full[name].chunk(len(facts), dim)[rank]
            assert shards[name].dtype == expected.dtype
            assert torch.equal(bits(shards[name]), bits(expected)), name


@pytest.mark.parametrize("kind", GROUPED)
def test_holds_what_quantising_the_slice_alone_gives(facts, kind):
    """Groups do not reach over a cut, so quantising and cutting may come in either order."""
    weight = decoder(**SIZES).layers[0].attn.o_proj.weight
    for rank, by_kind in enumerate(facts):
        alone = dict(kind(weight.chunk(len(facts), 1)[rank].contiguous()).named_parameters())
        for name, shard in by_kind[kind.__name__][1].items():
            assert torch.equal(bits(shard), bits(alone[name])), name


def test_holds_what_quantising_the_slice_with_whole_rows_scales_gives(facts):
    """A channel's scale is the whole row's; the slice's own would give other bits."""
    weight = decoder(**SIZES).layers[0].attn.o_proj.weight
    scales, same_with_own_scales = channel_scales(weight), []
    for rank, by_kind in enumerate(facts):
        part, shard = weight.chunk(len(facts), 1)[rank], by_kind[ChannelInt8.__name__][1]["weight"]
        assert torch.equal(shard, to_int8(part, scales))
        same_with_own_scales.append(torch.equal(shard, to_int8(part, channel_scales(part))))
    assert not all(same_with_own_scales)


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8)
