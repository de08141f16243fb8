"""Faults of the protocol, seeded one at a time into the product. Each must be found by a search.

A mutant is what is replaced, and the search that is to find it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from oproj_pass.agreement import calls
from oproj_pass.agreement.graphs import GraphText
from oproj_pass.agreement.step_group import ControlGroup
from oproj_pass.agreement.wire import StepKind
from oproj_pass.runtime import agree, guard, peers, prefill, serving
from oproj_pass.runtime.peers import Peers
from oproj_pass.runtime.runner import DecodeRunner
from oproj_pass.runtime.serving import Serving
from oproj_pass.runtime.wide_steps import WideSteps
from tests.protocol.searches import (
    ALL_CALLS,
    DRAFTS,
    LATE,
    PREFILLS,
    REFUSALS,
    ROLE_GRAPHS,
    ROLES_FAIL,
    ROLES_OF_TWO,
    THREE,
    WIDE_REFUSALS,
    Search,
)


@dataclass(frozen=True)
class Mutant:
    """``fault`` takes the place of the attribute ``name`` of ``owner``."""

    search: Search
    owner: Any
    name: str
    fault: Callable[..., Any]

    def seeded(self):
        return patch.object(self.owner, self.name, self.fault)


_agree_step, _disagreement, _exchange = agree.agree_step, peers.disagreement, ControlGroup.exchange
_replay, _agree, _peers_exchange = Serving._replay, Peers.agree, Peers._exchange
_run_wide = WideSteps.run


def go_by_own_part(self, kind, num_tokens, mode, reason="", **more):
    step = _agree(self, kind, num_tokens, mode, reason, **more)
    return replace(step, agreement=_agree_step([(num_tokens, mode)]))


def least_tokens(steps):
    return replace(_agree_step(steps), num_tokens=min(tokens for tokens, _ in steps))


def highest_mode(steps):
    return replace(_agree_step(steps), mode=max(mode for _, mode in steps))


def replay_idle_steps_twice(self, local, size):
    if local.num_rows == 1:
        _replay(self, local, size)
    return _replay(self, local, size)


def skip(*args, **kwargs):
    return None


def pair_any_step(rows, ranks):
    same = [replace(row, sequence=0, runner="") if row.kind is StepKind.STEP else row for row in rows]
    return _disagreement(same, ranks)


def wait_long(self, row, timeout):
    return _peers_exchange(self, row, timeout * (20 if row.kind is StepKind.FAILED else 1))


def go_on_without_the_lost(self, row, timeout):
    replies = _exchange(self, row, timeout)
    replies.rows.update(dict.fromkeys(replies.lost, row))
    replies.lost.clear()
    return replies


def hear_one_peer(self, row, timeout):
    every, self._peers = self._peers, self._peers[:1]
    try:
        replies = _exchange(self, row, timeout)
    finally:
        self._peers = every
    for place in range(len(self.ranks)):
        replies.rows.setdefault(place, row)
    return replies


def skip_an_idle_ranks_gathers(self, inputs):
    return None if len(inputs["x"]) == 1 else _run_wide(self, inputs)


def gather_where_one_is_ready(step, size):
    return not guard.replays(step, size) and any(row.gathers for row in step.rows)


def gather_as_replayed(self, inputs):
    """Without what serves reads, so that the model exchanges its rows, of which each rank has its own."""
    return self._call(inputs)


def agree_afterwards(self, local, *, idle):
    with self._peers.failing_together("replay", runs=True):
        result = self._replay(local, self._plan.max_size)
    self._peers.agree(StepKind.STEP, local.num_tokens, local.mode, local.reason)
    return result


def digest_of_any_order(text):
    return " ".join(sorted(text.collectives.lines))


def limit_the_largest_group(self):
    self.group.limit_collectives(self._timeout)


def carrier_of_the_largest_group(self):
    return [peers.carrier_of(self.group)]


def of_serving(name, fault):
    return Mutant(REFUSALS, Serving, name, fault)


MUTANTS = {
    "an unfit rank refuses without agreeing": Mutant(REFUSALS, Peers, "bring_error", skip),
    "each rank goes by its own tokens and mode": Mutant(REFUSALS, Peers, "agree", go_by_own_part),
    "the ranks agree after the replay": of_serving("_run", agree_afterwards),
    "an idle rank issues its collectives twice": of_serving("_replay", replay_idle_steps_twice),
    "an idle rank skips the agreement": Mutant(REFUSALS, DecodeRunner, "idle_step", skip),
    "the least of the token counts": Mutant(REFUSALS, agree, "agree_step", least_tokens),
    "the highest of the graph modes": Mutant(REFUSALS, agree, "agree_step", highest_mode),
    "steps of different runners pair": Mutant(DRAFTS, peers, "disagreement", pair_any_step),
    "a failed replay leaves the group in use": Mutant(DRAFTS, peers, "note_half_done", skip),
    "a failed rank waits twenty times as long": Mutant(REFUSALS, Peers, "_exchange", wait_long),
    "collectives keep the group's own timeout": Mutant(REFUSALS, ControlGroup, "limit_collectives", skip),
    "a lost rank is left out": Mutant(LATE, ControlGroup, "exchange", go_on_without_the_lost),
    "only one peer is heard": Mutant(THREE, ControlGroup, "exchange", hear_one_peer),
    "an idle rank skips the gathers": Mutant(WIDE_REFUSALS, WideSteps, "run", skip_an_idle_ranks_gathers),
    "one rank that can gather is enough": Mutant(
        WIDE_REFUSALS, serving, "gathers", gather_where_one_is_ready
    ),
    "a wide step exchanges rows": Mutant(WIDE_REFUSALS, WideSteps, "run", gather_as_replayed),
    "a failed call leaves the group in use": Mutant(ALL_CALLS, calls, "note_half_done", skip),
    "calls never compare their rows": Mutant(ALL_CALLS, calls, "are_rows_agreed", lambda ranks: True),
    "ranks that share prompts never compare them": Mutant(PREFILLS, prefill, "refusal", skip),
    "a rank that cannot prepare tells nobody": Mutant(ALL_CALLS, calls, "report_failure", skip),
    "graphs may exchange in their groups in any order": Mutant(
        ROLE_GRAPHS, GraphText, "digest", property(digest_of_any_order)
    ),
    "only the largest group's collectives are limited": Mutant(
        ROLES_FAIL, Peers, "limit_collectives", limit_the_largest_group
    ),
    "a failed replay leaves a role's group in use": Mutant(
        ROLES_OF_TWO, Peers, "_found_carriers", carrier_of_the_largest_group
    ),
}
