"""Process groups that are destroyed, or destroyed and made again, under a sharded model."""

import pytest
import torch
import torch.distributed as dist

import oproj_pass
from oproj_pass import OProjError
from oproj_pass.groups import shard_group
from tests.support.models import decoder, rows
from tests.support.ranks import free_port

pytestmark = pytest.mark.distributed


def sharded(**options):
    options = {
        "oproj_tensor_parallel_size": dist.get_world_size(),
        "timeout": 20,
        "step_timeout": 20,
        **options,
    }
    model = decoder(layers=1)
    return model, torch.compile(model, backend="oproj_npu", options=options, dynamic=True)


def remake(port, rank=None, groups_of_others=0):
    """A new world over the same processes, each with its rank unless another is given."""
    world, old = dist.get_world_size(), dist.get_rank()
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=old if rank is None else rank, world_size=world
    )
    for _ in range(groups_of_others):
        dist.new_group([0, 1])


def is_close(step, count):
    x = rows(count, 32)
    return torch.allclose(step(x), decoder(layers=1)(x), atol=1e-4)


def attempt(action):
    try:
        action()
    except OProjError as error:
        return type(error).__name__, str(error)
    return "none", ""


@torch.inference_mode()
def destroyed():
    _, step = sharded()
    step(rows(3, 32))
    dist.destroy_process_group()
    return attempt(lambda: step(rows(3, 32)))


def test_a_destroyed_group_is_named_with_its_layer_and_the_remedy(two_ranks):
    for kind, text in two_ranks.run(destroyed):
        assert kind == "GroupMismatchError"
        assert "layers.0.attn.o_proj: the process group of ranks [0, 1]" in text
        assert "Call init_process_group again" in text


@torch.inference_mode()
def remade(port, groups_of_others):
    model, step = sharded()
    step(rows(3, 32))
    remake(port, groups_of_others=groups_of_others)
    same_graph = is_close(step, 5)
    torch._dynamo.reset()
    another = is_close(step, 4)  # compiled for the new group, with the shards that are there
    full = oproj_pass.full_state_dict(model)
    return (
        same_graph,
        another,
        all(torch.equal(full[name], value) for name, value in decoder(layers=1).state_dict().items()),
    )


@pytest.mark.parametrize("groups_of_others", [0, 2])
def test_a_remade_group_of_the_same_ranks_serves_again(two_ranks, groups_of_others):
    """Also under other names: torch names a group by how many there are."""
    assert two_ranks.run(remade, free_port(), groups_of_others) == [(True, True, True)] * 2


@torch.inference_mode()
def gathered_after(port):
    model, step = sharded()
    step(rows(3, 32))
    remake(port)
    full = oproj_pass.full_state_dict(model)
    return all(torch.equal(full[name], value) for name, value in decoder(layers=1).state_dict().items())


def test_weights_are_gathered_over_a_remade_group(two_ranks):
    assert two_ranks.run(gathered_after, free_port()) == [True, True]


@torch.inference_mode()
def swapped(port):
    _, step = sharded()
    step(rows(3, 32))
    remake(port, rank=1 - dist.get_rank())
    return attempt(lambda: step(rows(3, 32)))


def test_ranks_that_changed_places_are_refused(two_ranks):
    for rank, (kind, text) in enumerate(two_ranks.run(swapped, free_port())):
        assert kind == "GroupMismatchError"
        assert f"this process is rank {1 - rank}" in text
        assert f"it holds slice {rank + 1} of 2" in text


@torch.inference_mode()
def given(port):
    model, step = sharded(group=dist.new_group([0, 1]))
    step(rows(3, 32))
    remake(port)
    refused = attempt(lambda: step(rows(3, 32)))
    torch._dynamo.reset()
    options = {"group": dist.new_group([0, 1]), "timeout": 20}
    again = torch.compile(model, backend="oproj_npu", options=options)
    return *refused, is_close(again, 3)


def test_a_group_that_was_given_has_to_be_given_again(two_ranks):
    for kind, text, serves in two_ranks.run(given, free_port()):
        assert kind == "GroupMismatchError"
        assert "given by the option `group`" in text
        assert serves


@torch.inference_mode()
def name_taken(port):
    """The name that the graph calls means another group by now."""
    _, step = sharded()
    step(rows(3, 32))
    name = shard_group(2, None, 20).device.group_name
    remake(port, groups_of_others=2)
    dist.distributed_c10d._register_process_group(name, dist.group.WORLD)
    refused = attempt(lambda: step(rows(3, 32)))
    torch._dynamo.reset()
    return *refused, is_close(step, 3)


def test_a_name_that_means_another_group_is_never_called(two_ranks):
    for kind, text, serves in two_ranks.run(name_taken, free_port()):
        assert kind == "GroupMismatchError"
        assert "a name that now means another group" in text
        assert "torch._dynamo.reset()" in text
        assert serves
