"""A dimension falls into parts that make it whole again, whatever its length, pieces and padding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.passes.gemm.split import Split


@given(
    extent=st.integers(1, 60), segments=st.integers(1, 3), unit=st.integers(1, 4), size=st.integers(1, 5),
    dim=st.integers(0, 1),
)  # fmt: skip
def test_the_parts_of_all_ranks_make_the_whole(extent, segments, unit, size, dim):
    split = Split(dim, segments, unit)
    shape = [3, 3]
    shape[dim] = extent * segments
    full = torch.arange(9 * extent * segments)[: shape[0] * shape[1]].reshape(shape)
    parts = [split.part_of(full, rank, size) for rank in range(size)]
    assert {part.shape[dim] for part in parts} == {split.part_length(shape[dim], size)}
    assert torch.equal(split.whole(parts, shape[dim]), full)


def test_fills_a_vocabulary_up_instead_of_flooring_it():
    vocabulary = torch.arange(1, 98)
    parts = [Split(0, padded_by=1).part_of(vocabulary, rank, 4) for rank in range(4)]
    assert [len(part) for part in parts] == [25] * 4
    assert parts[3].tolist() == [*range(76, 98), 0, 0, 0]


def test_a_rank_may_hold_padding_only():
    assert Split(0, padded_by=1).part_of(torch.ones(5), 3, 4).tolist() == [0, 0]


def test_pads_in_whole_units():
    assert Split(0, padded_by=8).part_length(20, 2) == 16


def test_takes_a_piece_of_each_segment():
    gate_up = torch.tensor([10, 11, 12, 13, 20, 21, 22, 23])
    assert Split(0, segments=2).part_of(gate_up, 1, 2).tolist() == [12, 13, 22, 23]


def test_lists_the_stretches_that_a_rank_reads_of_a_file():
    assert Split(0, segments=2).pieces(8, 1, 2) == [(2, 2), (6, 2)]
    assert Split(0, padded_by=1).pieces(97, 3, 4) == [(75, 22)]


@pytest.mark.parametrize(("extent", "segments"), [(7, 1), (6, 2), (7, 2)])
def test_refuses_parts_that_are_not_equal(extent, segments):
    with pytest.raises(ValueError, match=f"{extent} indices in {segments} segments do not fall into 2 parts"):
        Split(0, segments).part_of(torch.ones(extent), 0, 2)


@pytest.mark.parametrize("split", [Split(0, segments=2), Split(0, padded_by=4)])
def test_keeps_the_order_of_memory(split):
    full = torch.ones(4, 6).t()
    assert split.part_of(full, 0, 3).dim_order() == full.dim_order()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.bfloat16])
def test_pads_every_type_with_zeros(dtype):
    part = Split(0, padded_by=1).part_of(torch.ones(3).to(dtype), 1, 2)
    assert part.to(torch.float32).tolist() == [1, 0]
