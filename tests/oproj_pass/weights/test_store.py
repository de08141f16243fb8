"""A weight that a call brings is released, kept or refused; its slice is never another's, nor a stale one."""

import logging
import threading

import pytest
import torch
from torch import nn

from oproj_pass import ConfigError, WeightReleasedError
from oproj_pass.groups import ShardGroup
from oproj_pass.weights.placement import Placement
from oproj_pass.weights.released import Released
from oproj_pass.weights.shard import Signature
from oproj_pass.weights.store import Cut, ShardStore

SECOND_OF_TWO = Placement.split(1, ShardGroup(None, None, (0, 1), 1))


def parameter(*shape):
    return nn.Parameter(torch.randn(*shape), requires_grad=False)


def cut(weight, placement=SECOND_OF_TWO):
    return Cut("layers.0.o_proj", placement, Signature.of(weight))


def slice_of(store, weight, like=None):
    (slice_,) = store.slices_of([weight], [cut(weight if like is None else like)])
    return slice_


def second_half(weight):
    return weight.detach()[:, weight.shape[1] // 2 :].clone()


def is_kept(weight):
    return not isinstance(weight, Released) and weight.untyped_storage().nbytes() > 0


class TestReleases:
    @pytest.mark.parametrize(
        "kind", [lambda t: nn.Parameter(t, False), lambda t: t], ids=["parameter", "buffer"]
    )
    def test_a_weight_that_nothing_else_holds(self, kind):
        weight = kind(torch.randn(4, 6))
        expected = second_half(weight)
        assert torch.equal(slice_of(ShardStore(), weight), expected)
        assert isinstance(weight, Released)
        assert weight.untyped_storage().nbytes() == 0

    def test_a_transpose_whose_original_nothing_else_holds(self):
        weight = torch.randn(6, 4).t()
        expected = second_half(weight)
        assert torch.equal(slice_of(ShardStore(), weight), expected)
        assert isinstance(weight, Released)

    @pytest.mark.parametrize("calls", [1, 2], ids=["one graph", "two graphs"])
    def test_two_parameters_over_one_storage_as_one_shard(self, calls):
        store, first = ShardStore(), parameter(4, 6)
        second, expected = nn.Parameter(first.detach(), False), second_half(first)
        if calls == 1:
            slices = store.slices_of([first, second], [cut(first)] * 2)
        else:
            slices = [slice_of(store, first), slice_of(store, second)]
        assert all(torch.equal(slice_, expected) for slice_ in slices)
        assert first.shard is second.shard

    def test_once_when_threads_race(self):
        store, weights = ShardStore(), [parameter(8, 6) for _ in range(200)]
        expected, cuts = [second_half(w) for w in weights], [cut(w) for w in weights]
        barrier, wrong = threading.Barrier(4), []

        def call():
            barrier.wait()
            for weight, how, right in zip(weights, cuts, expected, strict=True):
                (slice_,) = store.slices_of([weight], [how])
                if not torch.equal(slice_, right):
                    wrong.append(slice_)

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert all(isinstance(weight, Released) for weight in weights)


ALIASES = {
    "a second parameter": lambda weight: nn.Parameter(weight.detach(), False),
    "a view": lambda weight: weight[1:],
    "a state dict": lambda weight: {"o_proj.weight": weight.detach()},
    "a NumPy array": lambda weight: weight.numpy(),
    "DLPack": lambda weight: torch.utils.dlpack.to_dlpack(weight.detach()),
}


class TestKeeps:
    @pytest.mark.parametrize("how", ALIASES)
    def test_a_weight_whose_storage_something_else_holds(self, how, caplog):
        store, weight = ShardStore(), parameter(4, 6)
        alias = ALIASES[how](weight)  # noqa: F841
        with caplog.at_level(logging.WARNING):
            slice_of(store, weight)
        assert is_kept(weight)
        assert "layers.0.o_proj: it has a weight whose storage has 1 other owners" in caplog.text
        weight.mul_(2)
        assert torch.equal(slice_of(store, weight), second_half(weight))  # and follows its values
        assert len(caplog.records) == 1

    def test_a_transpose_whose_original_something_holds(self):
        original = torch.randn(6, 4)
        weight = original.t()
        expected = second_half(weight)
        assert torch.equal(slice_of(ShardStore(), weight), expected)
        assert is_kept(weight)
        assert original.sum() == weight.sum()

    def test_names_what_holds_it(self, caplog):
        weight = parameter(4, 6)
        loaded = {"model.o_proj.weight": weight.detach()}  # noqa: F841
        slice_of(ShardStore(), weight)
        assert "`model.o_proj.weight`" in caplog.text

    def test_what_is_kept_where_it_is(self):
        """Graphs may have been captured over it."""
        store, weight = ShardStore(), parameter(4, 6)
        alias = weight.detach()
        slice_of(store, weight)
        del alias
        slice_of(store, weight)
        assert is_kept(weight)

    def test_weights_that_are_views_of_one_buffer_each_with_its_own_slice(self):
        store, old = ShardStore(), parameter(4, 6)
        flat = torch.randn(2 * 24)
        weights = [nn.Parameter(part.view(4, 6), False) for part in flat.split(24)]
        slices = [slice_of(store, weight, like=old) for weight in weights]
        assert [torch.equal(s, second_half(w)) for s, w in zip(slices, weights, strict=True)] == [True, True]
        assert not torch.equal(*slices)
        assert flat.untyped_storage().nbytes() == 48 * 4

    def test_a_bucket_as_large_as_its_only_weight_still_alive(self):
        """The buffer's own tensor is an owner too."""
        flat = torch.randn(24)
        weight = nn.Parameter(flat.view(4, 6), False)
        slice_of(ShardStore(), weight)
        assert is_kept(weight)
        assert torch.equal(flat + 0, flat)

    def test_a_weight_and_its_transpose_each_with_its_own_slice(self):
        store, weight = ShardStore(), parameter(6, 6)
        transpose = nn.Parameter(weight.detach().t(), False)
        slices = store.slices_of([weight, transpose], [cut(weight), cut(transpose)])
        assert torch.equal(slices[0], second_half(weight))
        assert torch.equal(slices[1], second_half(transpose))

    def test_a_weight_that_another_graph_reads_in_full(self, caplog):
        store, weight = ShardStore(), parameter(4, 6)
        store.record_readers([(weight, "lm_head")])
        slice_of(store, weight)
        assert is_kept(weight)
        assert "another compiled graph reads in full (`lm_head`)" in caplog.text


class TestRefuses:
    def test_before_any_weight_of_the_call_is_touched(self):
        store, weight, wrong = ShardStore(), parameter(4, 6), parameter(4, 8)
        cuts = [cut(weight), cut(parameter(4, 6))]
        with pytest.raises(ConfigError, match="a call brings"):
            store.slices_of([weight, wrong], cuts)
        assert is_kept(weight)
        slice_of(store, weight)
        assert isinstance(weight, Released)  # nor is it held against it later

    @pytest.mark.parametrize(
        "brought",
        [
            torch.randn(4, 8),
            torch.randn(4, 6, dtype=torch.float64),
            torch.randn(6, 4).t(),
            torch.empty(4, 6).to("meta"),
        ],
        ids=["shape", "type", "strides", "meta"],
    )
    def test_another_kind_of_weight_than_was_compiled_for(self, brought):
        with pytest.raises(ConfigError, match=r"layers\.0\.o_proj: a call brings a weight of shape"):
            slice_of(ShardStore(), nn.Parameter(brought, False), like=parameter(4, 6))

    def test_a_released_weight_of_another_type(self):
        store, weight = ShardStore(), parameter(4, 6)
        slice_of(store, weight)
        with pytest.raises(ConfigError, match=r"torch\.float32 on cpu, the graph was compiled for"):
            slice_of(store, weight, like=weight.to(torch.bfloat16))

    def test_tiles_that_are_no_slices(self, monkeypatch):
        monkeypatch.setattr("oproj_pass.weights.checks.is_in_tiles", lambda weight: True)
        with pytest.raises(ConfigError, match="FRACTAL_NZ"):
            slice_of(ShardStore(), parameter(4, 6))

    def test_a_tensor_over_a_storage_that_was_emptied(self):
        weight = parameter(4, 6)
        weight.untyped_storage().resize_(0)
        with pytest.raises(WeightReleasedError, match="over an empty storage"):
            slice_of(ShardStore(), weight)

    def test_a_weight_that_is_trained(self):
        with pytest.raises(ConfigError, match="requires grad"):
            slice_of(ShardStore(), nn.Parameter(torch.randn(4, 6)))

    def test_another_cut_of_a_released_weight(self):
        store, weight = ShardStore(), parameter(6, 6)
        slice_of(store, weight)
        first_of_three = Placement.split(1, ShardGroup(None, None, (0, 1, 2), 0))
        with pytest.raises(ConfigError, match="is already sharded along dimension 1 over ranks"):
            store.example_of(weight, cut(weight, first_of_three))
