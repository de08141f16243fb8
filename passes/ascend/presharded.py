"""Weights of which a rank stores only its slice, in a model that is still written for the full ones.

``WeightShard`` is a parametrisation: the module computes with ``oproj_pass::full_weight(slice)``, which has
the full shape, so that the model traces as it is. Run as it stands, the operator gathers the slices; the pass
turns ``x @ full_weight(slice)`` into the exchange around ``x @ slice``, and the operator disappears.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.fx import GraphModule, Node

from oproj_pass.errors import ConfigError
from oproj_pass.passes.gemm.split import Split
from oproj_pass.passes.graph.process_groups import process_group
from oproj_pass.passes.graph.provenance import module_path, value_of
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.region import ShardedRegion


@torch.library.custom_op("oproj_pass::full_weight", mutates_args=())
def full_weight(shard: Tensor, dim: int, size: int, group_name: str) -> Tensor:
    """The full matrix of which each of ``size`` ranks holds an equal slice along ``dim``."""
    shards = [torch.empty_like(shard) for _ in range(size)]
    dist.all_gather(shards, shard.contiguous(), group=process_group(group_name))
    return torch.cat(shards, dim)


@full_weight.register_fake
def _(shard: Tensor, dim: int, size: int, group_name: str) -> Tensor:
    shape = list(shard.shape)
    shape[dim] *= size
    return shard.new_empty(shape)


class WeightShard(nn.Module):
    """Parametrises a weight by this rank's slice along ``dim``, the summed one: 1 of a [H, K] weight.

    ``parametrize.register_parametrization(o_proj, "weight", WeightShard(1, group), unsafe=True)`` cuts the
    slice and lets go of the full weight.
    """

    def __init__(self, dim: int, group: ProcessGroup) -> None:
        super().__init__()
        self.dim, self.size, self.rank = dim, group.size(), group.rank()
        self.group_name = group.group_name

    def forward(self, shard: Tensor) -> Tensor:
        """[H, K/N] -> [H, K], by a collective unless a pass has taken its place."""
        return torch.ops.oproj_pass.full_weight(shard, self.dim, self.size, self.group_name)  # type: ignore[no-any-return]

    def right_inverse(self, weight: Tensor) -> Tensor:
        """[H, K] -> [H, K/N], a copy."""
        features = weight.shape[self.dim]
        if features % self.size:
            raise ConfigError(
                f"a weight of {features} input features cannot be split over {self.size} ranks: use a group "
                "whose size divides them."
            )
        return Split(self.dim).part_of(weight, self.rank, self.size).clone()


class Presharded(NamedTuple):
    """A weight that is this rank's slice already: the module that holds it, the dimension that was cut."""

    path: str
    dim: int


def require_cut_alike(presharded: Mapping[Node, Presharded], regions: Iterable[ShardedRegion]) -> None:
    """Raise ``ConfigError`` where a strategy wants another slice than the one that a rank has."""
    for region in regions:
        for node, cut in region.by_node.items():
            found, wanted = presharded.get(node), [tensor.dim for _, tensor in cut.along]
            if found is not None and wanted != [found.dim]:
                raise ConfigError(
                    f"{found.path}: its weight is sharded along dimension {found.dim}, strategy "
                    f"{region.strategy!r} needs it along {wanted}: give WeightShard that dimension, or "
                    "choose another strategy."
                )


def stand_in_for_full_weights(gm: GraphModule, exchange: Exchange) -> dict[Node, Presharded]:
    """Let each pre-sharded weight's placeholder pass for the full one."""
    presharded = {}
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.oproj_pass.full_weight.default):
        weight, dim, size, group_name = node.args
        path = module_path(node).partition(".parametrizations.")[0]
        if (size, group_name) != (exchange.size, exchange.group_name):
            raise ConfigError(
                f"{path}: its weight is sharded over {size} ranks of group {group_name!r}, the pass over "
                f"{exchange.size} ranks of group {exchange.group_name!r}: use one group for both."
            )
        weight.meta["val"] = value_of(node)
        node.replace_all_uses_with(weight)
        gm.graph.erase_node(node)
        presharded[weight] = Presharded(path, dim)
    return presharded
