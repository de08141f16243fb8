"""Which ranks a runner stays in step with: those it was given, or those that its graphs are sharded over."""

import logging
from collections.abc import Iterable

from oproj_pass.agreement.step_group import ControlGroup, StepGroup
from oproj_pass.errors import ConfigError
from oproj_pass.groups import ShardGroup, world_size

logger = logging.getLogger(__name__)


def joined_group(known: StepGroup | None, sharded_over: Iterable[ShardGroup]) -> StepGroup | None:
    """The ranks to agree with, once graphs sharded over these groups ran; None if nobody said any.

    Of several groups the largest, which has to hold all others: the ranks of a graph that meet, rather than
    those of one role or one side of a grid. Raises ``ConfigError`` if a graph needs a rank that the runner
    does not have.
    """
    for group in sorted(sharded_over, key=lambda group: (-group.size, group.side is not None)):
        if known is None:
            known = ControlGroup(group)
        elif not set(known.ranks).issuperset(group.ranks):
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
