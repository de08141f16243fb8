"""Whether the ranks that could share weights are there: nothing is left unsharded without a word.

At ``"auto"`` a process without a process group shards nothing. One that a launcher started beside others has
forgotten to make it, which is refused; alone it may be meant, and is said once.
"""

import logging
import os
from functools import cache

import torch.distributed as dist

from oproj_pass.automatic_sizes import AUTO
from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from oproj_pass.groups import world_size
from oproj_pass.passes.sites.options import size_option

logger = logging.getLogger(__name__)

# torchrun and most launchers; Open MPI; MPICH and its kin; Slurm's job steps
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
_REMEDY = "call torch.distributed.init_process_group before the compiled model"


def require_world(config: OProjConfig) -> None:
    """Raise ``ConfigError`` where ``"auto"`` finds no ranks, and they were launched or are counted on."""
    automatic = [size_option(role) for role, size in config.sizes.items() if size == AUTO]
    if not automatic or world_size(config.group) > 1:
        return
    initialised = dist.is_available() and dist.is_initialized()
    if not initialised and (launched := _launched()):
        raise ConfigError(
            f"torch.distributed is not initialised, and the launcher says {launched}: every rank would run "
            f"unsharded. On each of them {_REMEDY}, or set {' and '.join(automatic)} to 0."
        )
    if config.expected_sites:
        raise ConfigError(
            f"expected_sites = {config.expected_sites}, and nothing can be sharded: "
            f"{'the world is one rank' if initialised else 'torch.distributed is not initialised'}. Start "
            f"several ranks and {_REMEDY}, or leave expected_sites out."
        )
    if not initialised:
        _warn()


def _launched() -> str | None:
    """``WORLD_SIZE = 2``: what a launcher says of its ranks, where it started more than one."""
    stated = {name: os.environ.get(name, "") for name in _WORLD_SIZES}
    return next(
        (f"{name} = {size}" for name, size in stated.items() if size.isdigit() and int(size) > 1), None
    )


@cache  # once a process, however many graphs it compiles
def _warn() -> None:
    logger.warning(
        "torch.distributed is not initialised: nothing is sharded, every weight stays whole. To shard, %s.",
        _REMEDY,
    )
