"""Which data-parallel ranks share a weight in this vLLM process."""

from collections.abc import Mapping

from torch.distributed import ProcessGroup
from vllm.distributed.parallel_state import get_dp_group

from oproj_pass.groups import ShardGroup, shard_group
from oproj_pass.integrations.vllm.settings import Settings

_TIMEOUT = 600.0


def process_group_of(sizes: Mapping[str, int]) -> ProcessGroup | None:
    """vLLM's own data-parallel group where every size is its; None: consecutive ranks of the world.

    With tensor, pipeline and context parallelism at 1, as the rules require, the world *is* the data-parallel
    ranks in order.
    """
    group: ProcessGroup = get_dp_group().device_group
    return group if {size for size in sizes.values() if size > 1} == {group.size()} else None


def shard_group_of(settings: Settings) -> ShardGroup:
    """The group this rank shares its output projections with; the same one that the backend asks for."""
    timeout = float(settings.options.get("timeout", _TIMEOUT))
    return shard_group(settings.sizes["oproj"], process_group_of(settings.in_model), timeout)
