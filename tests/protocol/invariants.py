"""What no schedule may show. Each rule looks at one state and says what is wrong with it, or None."""

from itertools import zip_longest

from tests.protocol.tape import FAILED, RAW, REFUSED, SERVED, SLOW, STOPPED


def violation(state, *, is_end):
    """The first rule that ``state`` breaks, in words; ``is_end``: nothing can happen any more."""
    for rule in (
        _joined_by_one_step,
        _refused_by_all,
        _nothing_served_after_an_error,
        _errors_are_promised,
        _nothing_stops_without_a_cause,
    ):
        if (wrong := rule(state)) is not None:
            return wrong
    return _waits_for_ever(state) if is_end else None


def _joined_by_one_step(state):
    for ranks in {ranks for local in state.ranks for ranks in local.joined}:
        by_rank = (state.ranks[rank].joined.get(ranks, ()) for rank in ranks)
        for index, joined in enumerate(zip_longest(*by_rank)):
            different = {step for step in joined if step is not None}
            if len(different) > 1:
                some = f" of ranks {list(ranks)}" if len(ranks) < len(state.ranks) else ""
                return f"device collective {index}{some} is joined by different steps: {joined}"
    return None


def _refused_by_all(state):
    results = {}
    for local in state.ranks:
        for outcome in local.outcomes:
            results.setdefault(outcome.doing, set()).add(outcome.result)
    split = [doing for doing, found in results.items() if {SERVED, REFUSED} <= found]
    return f"{split[0]} is served on one rank and refused on another" if split else None


def _nothing_served_after_an_error(state):
    stopped = [
        (outcome.number, rank)
        for rank, local in enumerate(state.ranks)
        for outcome in local.outcomes
        if outcome.result == STOPPED
    ]
    if not stopped:
        return None
    number, culprit = min(stopped)
    for rank, local in enumerate(state.ranks):
        for outcome in local.outcomes:
            if outcome.result == SERVED and outcome.number > number:
                return f"rank {rank} serves {outcome.doing} after rank {culprit} had stopped"
    return None


def _errors_are_promised(state):
    for rank, local in enumerate(state.ranks):
        for outcome in local.outcomes:
            if outcome.result in (RAW, SLOW):
                return f"rank {rank}, {outcome.doing}: {outcome.error}"
    return None


def _nothing_stops_without_a_cause(state):
    if not state.calm:
        return None
    for rank, local in enumerate(state.ranks):
        for outcome in local.outcomes:
            if outcome.result in (STOPPED, FAILED):
                return f"rank {rank} stops in {outcome.doing} although nothing happened: {outcome.error}"
    return None


def _waits_for_ever(state):
    for rank, (local, alive) in enumerate(zip(state.ranks, state.alive, strict=True)):
        if alive and local.pending is not None:
            return f"rank {rank} waits for ever: {local.pending}"
    return None
