"""Consecutive ranks, N at a time; sizes that do not fit are refused with those that do."""

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore

from oproj_pass import ConfigError
from oproj_pass.groups import (
    ShardGroups,
    automatic_size,
    joint_group,
    require_fitting_size,
    shard_group,
    world_size,
)
from tests.support.fake import fake_world


@pytest.mark.parametrize(
    ("rank", "size", "ranks", "place"), [(0, 2, (0, 1), 0), (5, 2, (4, 5), 1), (6, 4, (4, 5, 6, 7), 2)]
)
def test_takes_consecutive_ranks(rank, size, ranks, place):
    with fake_world(8, rank):
        group = shard_group(size, None, timeout=5)
        assert (group.ranks, group.rank, group.size) == (ranks, place, size)


def test_makes_each_group_once():
    with fake_world(4):
        assert shard_group(2, None, 5) is shard_group(2, None, 5)
        assert shard_group(4, None, 5) is not shard_group(2, None, 5)


@pytest.mark.parametrize(
    ("sizes", "joint"), [([2, 4], (4, 5, 6, 7)), ([2, 3], (0, 1, 2, 3, 4, 5)), ([2, 2], (4, 5))]
)
def test_agrees_over_the_fewest_ranks_that_are_whole_groups_of_every_size(sizes, joint):
    with fake_world(12, rank=5):
        groups = ShardGroups.of(sizes, sizes, None, 5)
        assert groups.joint.ranks == joint
        assert all(set(group.ranks) <= set(joint) for group in groups.by_size.values())
        assert [group.size for group in groups.all] == sorted({*sizes, len(joint)})


def test_has_nobody_to_agree_with_where_no_such_group_fits():
    with fake_world(6):
        assert joint_group([1], None, 5) is None
        assert joint_group([4], None, 5) is None


def test_forgets_the_groups_of_a_world_that_ended():
    with fake_world(4):
        first = shard_group(2, None, 5)
    with fake_world(4):
        assert shard_group(2, None, 5) is not first


@pytest.mark.parametrize("backend", ["fake", "cpu:fake,cuda:fake"])
def test_a_fake_world_has_no_peers_and_needs_no_network(backend):
    dist.init_process_group(backend, store=FakeStore(), rank=0, world_size=4)
    try:
        group = shard_group(2, None, 5)
        assert not group.has_peers
        assert str(dist.get_backend(group.control)) == "fake"
    finally:
        dist.destroy_process_group()


def test_uses_a_given_group_as_it_is():
    with fake_world(4, rank=3):
        given_group = dist.new_group([1, 3])
        group = shard_group(2, given_group, 5)
        assert (group.ranks, group.rank, group.device) == ((1, 3), 1, given_group)
        with pytest.raises(ConfigError, match="the given group has 2 ranks"):
            require_fitting_size(4, given_group)


@pytest.mark.parametrize("size", [3, 5, 16])
def test_refuses_a_size_that_does_not_divide_the_world(size):
    with fake_world(8), pytest.raises(ConfigError, match=r"world of 8 ranks\. Sizes that do: 1, 2, 4, 8"):
        require_fitting_size(size, None)


def test_names_the_option_of_the_role_whose_size_does_not_fit():
    with fake_world(8), pytest.raises(ConfigError, match="lmhead_tensor_parallel_size = 3 does not divide"):
        require_fitting_size(3, None, "lmhead")


def test_refuses_sharding_without_a_process_group():
    assert world_size(None) == 1
    with pytest.raises(ConfigError, match="init_process_group"):
        require_fitting_size(2, None)


@given(world=st.integers(1, 64), features=st.lists(st.integers(1, 4096), max_size=6))
def test_automatic_size_divides_everything_and_no_larger_one_does(world, features):
    size = automatic_size(world, features)
    divides = [n for n in (8, 4, 2, 1) if world % n == 0 and all(k % n == 0 for k in features)]
    assert size == divides[0]
