"""Which ranks a runner stays in step with: those it was given, or those that its graphs are sharded over."""

import logging
from collections.abc import Iterable

from oproj_pass.agreement.step_group import ControlGroup, StepGroup
from oproj_pass.errors import ConfigError
from oproj_pass.groups import ShardGroup, world_size

logger = logging.getLogger(__name__)


def joined_group(known: StepGroup | None, sharded_over: Iterable[ShardGroup]) -> StepGroup | None:
    """The ranks to agree with, once graphs sharded over these groups ran; None if nobody said any.

    Raises ``ConfigError`` if a graph needs other ranks than the runner has.
    """
    for group in sharded_over:
        if known is None:
            known = ControlGroup(group)
        elif known.ranks != group.ranks:
            raise ConfigError(
                f"the runner's group is ranks {list(known.ranks)}, but a graph of the model is sharded over "
                f"ranks {list(group.ranks)}: give the runner that group"
            )
    return known


def warn_unguarded(name: str) -> None:
    """Say that a runner without a group guards nothing, where there are ranks that it might have."""
    world = world_size(None)
    if world > 1:
        logger.warning(
            "%s: steps are not guarded. No sharded graph of the backend oproj_npu ran in this thread while "
            "capturing, and no `group` was given, but the process group has %d ranks. If the model exchanges "
            "rows between ranks, pass them as `group`; if not, pass a group of this rank alone",
            name, world,
        )  # fmt: skip
