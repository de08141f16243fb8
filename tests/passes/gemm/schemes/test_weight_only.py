"""Weights that are dequantised in the graph: what is cut of them, and that the parts make up the whole."""

import pytest
import torch
from torch import nn

from oproj_pass.errors import ConfigError
from oproj_pass.passes import Axis, Exchange, ShardOProj, find_projections, run_passes, shard_of
from tests.support import layouts
from tests.support.fake import fake_world, run_on_all_ranks
from tests.support.layouts import LAYOUTS, layout
from tests.support.quantised import Model

ATTENTION = frozenset({torch.ops.oproj_quantised.attend})


def exported(module, features=64):
    program = torch.export.export(Model(module), (torch.randn(3, features),))
    signature = program.graph_signature
    return program.graph_module, {**signature.inputs_to_parameters, **signature.inputs_to_buffers}


def search(module, features=64):
    gm, names = exported(module, features)
    return find_projections(gm, parameters=names, attention_ops=ATTENTION)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_cuts_what_lies_along_the_features_and_nothing_else(kind):
    (site,), misses = search(layout(kind))
    assert misses == []
    assert (site.scheme, site.in_features, site.out_features) == ("weight_only", 64, 24)
    assert {cut.path.removeprefix("o_proj.") for cut in site.along(Axis.K).tensors} == set(kind.kept)
    assert site.gemm.k.unit == kind.unit


def sharded(module, size, slice_of=shard_of, features=64):
    """Outputs by rank, and the unsharded ones."""
    gm, names = exported(module, features)
    values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights = {node: values[path.removeprefix("o_proj.")] for node, path in names.items()}
    inputs = [(torch.randn(3, features),) for _ in range(size)]
    with fake_world(size) as name:
        rewrite = ShardOProj(Exchange(size, name), parameters=names, attention_ops=ATTENTION)
        (record,) = run_passes(gm, (), [rewrite])
        outputs = run_on_all_ranks(gm, record, weights, inputs, size, slice_of)
    return zip(outputs, [module(x) for (x,) in inputs], strict=True)


def error(pairs):
    return max(((y - expected).abs().max() / expected.abs().max()).item() for y, expected in pairs)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_keeps_every_ranks_result(kind, size):
    assert error(sharded(layout(kind), size)) < 1e-5


def next_ranks_slice(weight_slice, full, rank, size):
    return shard_of(weight_slice, full, (rank + 1) % size, size)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_parity_fails_with_the_wrong_slice(kind):
    assert error(sharded(layout(kind), 2, next_ranks_slice)) > 1e-2


def scales_left_whole(weight_slice, full, rank, size):
    """The first rank's scales for all: as if they were not cut along the features."""
    is_scale = weight_slice.path.endswith(("scale", "scales", "zero", "qzeros"))
    return shard_of(weight_slice, full, 0 if is_scale else rank, size)


@pytest.mark.parametrize("kind", [kind for kind in LAYOUTS if len(kind.kept) > 1 and kind.group == kind.unit])
def test_parity_fails_with_another_ranks_scales(kind):
    assert error(sharded(layout(kind), 2, scales_left_whole)) > 1e-2


def test_a_shard_dequantises_to_the_reference_slice():
    """int4, K = 64, groups of 16, two shards: two rows of scales and of zero points each."""
    whole = layout(layouts.AWQ)
    (site,), _ = search(whole)
    for rank in range(2):
        part = layout(layouts.AWQ)
        for cut in site.along(Axis.K).tensors:
            name = cut.path.removeprefix("o_proj.")
            part.register_buffer(name, shard_of(cut, getattr(whole, name), rank, 2))
        assert part.scales.shape[0] == part.qzeros.shape[0] == 2
        assert torch.equal(part.dequantise(), whole.dequantise().chunk(2, 1)[rank])


def refusal_at(module, size, features):
    gm, names = exported(module, features)
    with fake_world(size) as name, pytest.raises(ConfigError) as refused:
        run_passes(gm, (), [ShardOProj(Exchange(size, name), parameters=names, attention_ops=ATTENTION)])
    return str(refused.value)


class Blocks128(layouts.LastBlockShorter):
    pass


@pytest.mark.parametrize(
    ("kind", "features", "size", "unit", "fitting"),
    [
        (layouts.Groups, 96, 4, 16, "2"),
        (Blocks128, 256, 4, 128, "2"),
        (Blocks128, 576, 2, 128, "none but 1"),
        (layouts.GPTQ, 48, 4, 8, "2"),
        (layouts.PairsInBytes, 48, 2, 16, "none but 1"),
    ],
)
def test_refuses_a_slice_that_cuts_a_group_a_block_or_a_word(kind, features, size, unit, fitting):
    message = refusal_at(layout(kind, features=features), size, features)
    assert message.startswith(f"o_proj: K = {features} ")
    assert f"oproj_tensor_parallel_size = {size} ranks: {unit} consecutive features" in message
    assert message.endswith(f"Sizes that divide this K: {fitting}.")


def test_takes_the_size_of_a_block_from_the_graph_when_the_last_one_is_shorter():
    """576 features and five scales are blocks of 128, never of 576 / 5."""
    (site,), _ = search(layout(layouts.LastBlockShorter, features=576), 576)
    assert site.gemm.k.unit == 128


class HalvesAlongFeatures(layouts.PairsInBytes):
    """Low nibbles are the first half of the features, high ones the second."""

    def dequantise(self):
        q = torch.cat([self.packed & 15, self.packed >> 4], dim=1)
        return (q.float() - 8) * self.scale.repeat_interleave(self.group, dim=-1)


class Permuted(layouts.Channels):
    """The features of the weight are picked in another order."""

    def store(self, features, hidden):
        super().store(features, hidden)
        self.constant("order", torch.randperm(features))

    def dequantise(self):
        return super().dequantise()[:, self.order]


class Rolled(layouts.Channels):
    def dequantise(self):
        return super().dequantise().roll(1, dims=1)


class ViewedAcross(layouts.Channels):
    """Rows of another length than the features: no part of K is a part of them."""

    def store(self, features, hidden):
        super().store(features, hidden)
        self.constant("scale", torch.rand(features * hidden // 48, 1))

    def dequantise(self):
        return (self.q.float().view(-1, 48) * self.scale).view(self.hidden, self.features)


class PaddedStorage(layouts.Channels):
    """Rows longer than K: parts of the rows are no parts of K."""

    def store(self, features, hidden):
        super().store(features + 16, hidden)

    def dequantise(self):
        return super().dequantise()[:, : self.features]


class Flipped(layouts.Channels):
    def dequantise(self):
        return super().dequantise().flip(1)


class Bytes(layouts.CompressedTensors):
    """Words read as their bytes."""

    def dequantise(self):
        pairs = self.weight_packed.view(torch.uint8)
        q = torch.stack([pairs & 15, pairs >> 4], dim=-1).flatten(1)
        return (q.float() - 8) * self.weight_scale.repeat_interleave(self.group, dim=1)


def test_follows_words_that_are_read_as_their_bytes():
    (site,), _ = search(layout(Bytes))
    assert {cut.path: cut.unit for cut in site.along(Axis.K).tensors} == {
        "o_proj.weight_packed": 8,
        "o_proj.weight_scale": 16,
    }
    assert error(sharded(layout(Bytes), 2)) < 1e-5


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (PaddedStorage, "has 80 parts along K in `b_o_proj_q`, where 64 hold all of it"),
        (Flipped, "is computed by `flip`"),
        (HalvesAlongFeatures, "joins parts along K at `cat`"),
        (Permuted, "picks its input features by an index"),
        (Rolled, "is computed by `roll`"),
        (ViewedAcross, "across K"),
    ],
)
def test_leaves_a_layout_alone_that_scatters_the_features_and_says_how(kind, reason):
    sites, (miss,) = search(layout(kind))
    assert sites == []
    assert miss.path == "o_proj"
    assert miss.reason.startswith("has a weight that ")
    assert reason in miss.reason


def test_leaves_a_layer_alone_whose_scales_another_layer_reads():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (Model(layout(layouts.Groups, hidden=64)) for _ in range(2))
            self.second.o_proj.zero = self.first.o_proj.zero

        def forward(self, x):
            return self.second(self.first(x)) + self.first.o_proj.zero.sum()

    program = torch.export.export(Two(), (torch.randn(3, 64),))
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    sites, misses = find_projections(program.graph_module, parameters=names, attention_ops=ATTENTION)
    assert sites == []
    assert len(misses) == 2
    assert all("also read by" in miss.reason for miss in misses)


def test_cuts_scales_once_that_two_projections_share():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (Model(layout(layouts.Groups, hidden=64)) for _ in range(2))
            self.second.o_proj.zero = self.first.o_proj.zero

        def forward(self, x):
            return self.second(self.first(x))

    program = torch.export.export(Two(), (torch.randn(3, 64),))
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    sites, misses = find_projections(program.graph_module, parameters=names, attention_ops=ATTENTION)
    assert misses == []
    assert len({cut.node for site in sites for cut in site.along(Axis.K).tensors}) == 5
