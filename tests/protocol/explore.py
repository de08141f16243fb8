"""Every schedule of a program's ranks: each order of waits, each crash, late rank, failure and refusal.

A state is what each rank has heard, and which ranks are dead. Wires and collectives follow from it: what is
on its way was sent and not yet heard. The search goes by steps: the first violation has a shortest schedule.

Rules of the virtual world, each at least as unkind as gloo's:
- A living rank's row arrives in the end; one of a rank that died, or closed its connections, may be lost.
- Any wait may run out although its peer is well: a fault, of which there may be a few. Once nobody can move,
  waits run out for free, in any order; one without a timeout never does.
- A rank may die wherever it waits.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from tests.protocol.invariants import violation
from tests.protocol.tape import DONE, LATE, LOST, Choose, Hear

DIES = "dies"


class State(NamedTuple):
    """``crashes``, ``late``, ``choices``: how many more may happen; ``calm``: no harm was done so far."""

    ranks: tuple
    alive: tuple
    crashes: int
    late: int
    choices: int
    calm: bool = True


@dataclass(frozen=True)
class Move:
    """One rank's part of a schedule: the answer that it gets, in words too."""

    rank: int
    answer: object
    words: str


@dataclass
class Found:
    """The end of a search. ``schedule``: of the first violation, if there is one."""

    num_states: int = 0
    num_transitions: int = 0
    num_ends: int = 0
    violation: str | None = None
    schedule: tuple = ()


def explore(start, rule=violation):
    """Search all schedules from the state ``start``; stops at the first one that breaks ``rule``."""
    came_from, waiting, found = {start: None}, deque([start]), Found()
    while waiting:
        state = waiting.popleft()
        moves = successors(state)
        found.num_transitions += len(moves)
        found.num_ends += not moves
        wrong = rule(state, is_end=not moves)
        if wrong is not None:
            found.violation, found.schedule = wrong, _schedule(came_from, state)
            break
        for move, successor in moves:
            if successor not in came_from:
                came_from[successor] = (state, move)
                waiting.append(successor)
    found.num_states = len(came_from)
    return found


def _schedule(came_from, state):
    moves = []
    while came_from[state] is not None:
        state, move = came_from[state]
        moves.append(move)
    return tuple(reversed(moves))


def after_calls(start, number):
    """The state in which every rank has ended ``number`` calls, from ``start``, with no fault on the way."""
    state = start
    while behind := [rank for rank, local in enumerate(state.ranks) if len(local.outcomes) < number]:
        state = next(successor for rank in behind for _, successor in _moves(state, rank))
    return state


def successors(state):
    """Each move that is possible now, with the state after it."""
    for rank, local in enumerate(state.ranks):
        if state.alive[rank] and isinstance(local.pending, Choose):
            return _chosen(state, rank)  # nobody sees when it chooses
    moving, running_out = [], []
    for rank, local in enumerate(state.ranks):
        if not state.alive[rank] or local.pending is None:
            continue
        moves = _moves(state, rank)
        if moves and not (state.crashes or state.late):
            return moves  # nothing that others do takes one away or adds one: their order does not matter
        moving += moves
        if local.pending.timeout is not None:
            running_out.append(rank)
    changed = {"late": state.late - 1, "calm": False}
    late = [_moved(state, rank, LATE, _in_words(state, rank, LATE), **changed) for rank in running_out]
    if not moving:
        free = [_moved(state, rank, LATE, _in_words(state, rank, LATE)) for rank in running_out]
        moving, late = free, []
    if state.late:
        moving += late
    if state.crashes and (moving or any(local.pending for local in state.ranks)):
        moving += [_died(state, rank) for rank in range(len(state.ranks)) if state.alive[rank]]
    return moving


def _moves(state, rank):
    """What the rank may do now that is no fault of its own or of the wires; of choices, others too."""
    pending = state.ranks[rank].pending
    if isinstance(pending, Choose):
        return _chosen(state, rank)
    return _heard(state, rank) if isinstance(pending, Hear) else _joined(state, rank)


def _chosen(state, rank):
    first, *others = state.ranks[rank].pending.options
    calm = state.calm and not state.ranks[rank].pending.harmful
    moves = [_moved(state, rank, first, f"chooses {first!r}")]
    if state.choices:
        changed = {"choices": state.choices - 1, "calm": calm}
        moves += [_moved(state, rank, name, f"chooses {name!r}", **changed) for name in others]
    return moves


def _heard(state, rank):
    wait = state.ranks[rank].pending
    peer = wait.peer
    rows = state.ranks[peer].sent.get((wait.ranks, rank), ())
    moves = []
    if wait.index < len(rows):
        moves.append(_moved(state, rank, rows[wait.index], f"hears rank {peer}"))
    if not state.alive[peer] or state.ranks[peer].gave_up(wait):
        moves.append(_moved(state, rank, LOST, _in_words(state, rank, LOST)))
    return moves


def _joined(state, rank):
    wait = state.ranks[rank].pending
    peers = [peer for peer in wait.ranks if peer != rank]
    moves = []
    if all(len(state.ranks[peer].joined.get(wait.ranks, ())) > wait.index for peer in peers):
        moves.append(_moved(state, rank, DONE, "ends its collective"))
    gone = (not state.alive[peer] or state.ranks[peer].gave_up(wait) for peer in peers)
    if wait.notices and any(gone):
        moves.append(_moved(state, rank, LOST, _in_words(state, rank, LOST)))
    return moves


def _in_words(state, rank, answer):
    pending = state.ranks[rank].pending
    return (
        f"{answer} rank {pending.peer}" if isinstance(pending, Hear) else f"{answer} a peer of its collective"
    )


def _moved(state, rank, answer, words, **changed):
    local = state.ranks[rank].after(answer)
    ranks = (*state.ranks[:rank], local, *state.ranks[rank + 1 :])
    return Move(rank, answer, words), state._replace(ranks=ranks, **changed)


def _died(state, rank):
    alive = (*state.alive[:rank], False, *state.alive[rank + 1 :])
    return Move(rank, DIES, DIES), state._replace(alive=alive, crashes=state.crashes - 1, calm=False)
