"""The searches of the test run: which program on how many ranks, and how many faults a schedule may have."""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from oproj_pass.agreement import step_group
from oproj_pass.weights import gather_layout
from tests.protocol.explore import State, after_calls
from tests.protocol.programs import Exchanging, Gathering, Sharded, call, draft, prefill, serve
from tests.protocol.tape import ENDS_PROCESS, NEVER, RAISES, Clock
from tests.protocol.virtual_rank import Ranks


@dataclass(frozen=True)
class Search:
    """``crashes``, ``late``, ``choices``: at most so many in a schedule; ``device_timeout``: ``Device``'s.

    ``begins``: the calls that every rank has made already, with no fault.
    """

    program: Callable[[Any], None]
    world: int
    crashes: int
    late: int
    choices: int
    device_timeout: str = RAISES
    begins: int = 0

    @contextmanager
    def start(self):
        """The state in which the search starts, and the clock of the product is the ranks'."""
        clock = Clock()
        ranks = Ranks(self.program, self.world, clock, self.device_timeout)
        gather = patch.object(gather_layout, "start_gather", _start_gather)
        with patch.object(step_group, "time", clock), gather:
            alive = (True,) * self.world
            start = State(ranks.starts, alive, self.crashes, self.late, self.choices)
            yield after_calls(start, self.begins)


def _start_gather(parts, mine, group):
    return [group.device.start(f"{parts.nbytes} bytes of a weight")]


_BRIEFLY = partial(
    serve,
    warm_up=False,
    steps=2,
    kinds=("busy", "unfit", "oversize"),
    model=partial(Exchanging, moments=("runs", "fails before")),
)
SERVE = Search(partial(serve, warm_up=True, steps=2), 2, crashes=1, late=1, choices=1)
THREE = Search(_BRIEFLY, 3, crashes=1, late=0, choices=1)
THREE_LATE = Search(_BRIEFLY, 3, crashes=1, late=1, choices=0)
DRAFT = Search(draft, 2, crashes=1, late=0, choices=1)
PREFILL = Search(partial(prefill, steps=2), 2, crashes=1, late=0, choices=1)
CALLS = Search(call, 2, crashes=1, late=1, choices=1)
CALLS_OF_THREE = Search(partial(call, calls=1), 3, crashes=1, late=0, choices=1)
SHARDED = Search(partial(serve, warm_up=True, steps=1, model=Sharded), 2, crashes=1, late=1, choices=1)
_WIDE = partial(
    serve, warm_up=False, kinds=("oversize", "idle", "unfit"), model=Gathering, wide_steps="gather"
)
WIDE = Search(partial(_WIDE, steps=1), 2, crashes=1, late=1, choices=1)

# Roles of different sizes: two pairs share the MLPs, all four ranks the head.
_PAIRS_AND_ALL = (2, 4)
_MOMENTS = ("runs", "fails before", "fails between")
_ROLES = partial(
    serve,
    warm_up=False,
    steps=1,
    kinds=("busy", "unfit"),
    model=partial(Exchanging, moments=_MOMENTS, sizes=_PAIRS_AND_ALL),
)
ROLES = Search(_ROLES, 4, crashes=1, late=0, choices=0, begins=1)
ROLES_LATE = Search(_ROLES, 4, crashes=0, late=1, choices=0, begins=1)
ROLES_FAIL = Search(_ROLES, 4, crashes=0, late=0, choices=1, begins=1)
ROLE_GRAPHS = Search(
    partial(call, calls=1, model=partial(Sharded, moments=("runs",), sizes=_PAIRS_AND_ALL)),
    4, crashes=0, late=0, choices=1, device_timeout=NEVER,
)  # fmt: skip
ROLES_OF_TWO = Search(
    partial(
        draft,
        turns=("target", "draft"),
        parts=("takes part",),  # a step of the target left out is none of the draft's group
        failing=("target",),
        sizes={"target": _PAIRS_AND_ALL, "draft": (2,)},
    ),
    4, crashes=0, late=0, choices=1, begins=2,
)  # fmt: skip

_ONE_STEP = partial(serve, warm_up=False, steps=1)
NO_DEVICE_TIMEOUT = Search(_ONE_STEP, 2, crashes=1, late=0, choices=0, device_timeout=NEVER)
WATCHED_DEVICE = Search(_ONE_STEP, 3, crashes=1, late=0, choices=0, device_timeout=ENDS_PROCESS)

# Smaller ones, which find the seeded faults.
REFUSALS = Search(partial(serve, warm_up=False, steps=2), 2, crashes=0, late=0, choices=1)
LATE = Search(_BRIEFLY, 2, crashes=0, late=1, choices=1)
ALL_CALLS = Search(call, 2, crashes=0, late=0, choices=1)
WIDE_REFUSALS = Search(partial(_WIDE, steps=2), 2, crashes=0, late=0, choices=1)
DRAFTS = Search(draft, 2, crashes=0, late=0, choices=1)
PREFILLS = Search(partial(prefill, steps=1), 2, crashes=0, late=0, choices=1)

SEARCHES = {
    "a runner of two": SERVE,
    "a runner of three, failures and refusals": THREE,
    "a runner of three, late ranks": THREE_LATE,
    "a target's and a draft's runner": DRAFT,
    "a runner of split prefills": PREFILL,
    "calls of sharded graphs": CALLS,
    "calls of sharded graphs on three": CALLS_OF_THREE,
    "a runner of a sharded model": SHARDED,
    "wide steps of a runner": WIDE,
    "wide steps, one after the other": WIDE_REFUSALS,
    "roles of two sizes, a lost rank": ROLES,
    "roles of two sizes, late ranks": ROLES_LATE,
    "roles of two sizes, failures and refusals": ROLES_FAIL,
    "graphs of roles of two sizes": ROLE_GRAPHS,
    "a target and a draft of other roles": ROLES_OF_TWO,
    "a device whose collectives end the process": WATCHED_DEVICE,
}
