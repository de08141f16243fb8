"""A process group without processes: for structure, and (with ``LocalTensorMode``) for numbers."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from oproj_pass.passes import shard_of
from oproj_pass.passes.graph.provenance import placeholders


@contextmanager
def fake_world(size, rank=0):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield dist.group.WORLD.group_name
    finally:
        dist.destroy_process_group()


def run_on_all_ranks(gm, record, parameters, inputs, size, slice_of=shard_of):
    """Outputs by rank of a rewritten exported graph, all ranks in this process.

    ``record``: the sharding pass's. ``parameters``: placeholder name to full weight. ``inputs``: per rank,
    the user inputs in order.
    """
    cuts = {node.name: cut for node, cut in record.tensors.items()}
    activations = iter(zip(*inputs, strict=True))
    arguments = []
    for node in placeholders(gm):
        if node.name in cuts:
            by_rank = [
                part_of(cuts[node.name], parameters[node.name], rank, slice_of) for rank in range(size)
            ]
        elif node.name in parameters:
            by_rank = [parameters[node.name].detach()] * size
        else:
            by_rank = next(activations)
        arguments.append(LocalTensor(dict(enumerate(by_rank))))
    with LocalTensorMode(size), torch.no_grad():
        (result,) = gm(*arguments)
    return [result._local_tensors[rank] for rank in range(size)]


def part_of(cut, full, rank, slice_of=shard_of):
    """Rank ``rank``'s part of a full stored tensor, as the region that reads it cuts it."""
    exchange = cut.region.config
    for axis, tensor in cut.along:
        full = slice_of(tensor, full, exchange.place(axis, rank), exchange.over(axis).size)
    return full
