"""A schedule as a table: a column for each rank, a row for each move, and what came of it. It reads back.

2 ranks                      rank 0                         rank 1
1    hears rank 1                   |
2                                   | dies
"""

from tests.protocol.explore import successors

_ARROW = " => "


def print_schedule(start, schedule):
    """The table of ``schedule``, from the state ``start``."""
    world = len(start.ranks)
    lines = [[f"rank {rank}" for rank in range(world)]]
    state = start
    for move in schedule:
        before = len(state.ranks[move.rank].outcomes)
        state = _follow(state, move.rank, move.words)
        came_of_it = [
            f"{outcome.doing} {outcome.result}" for outcome in state.ranks[move.rank].outcomes[before:]
        ]
        cells = [""] * world
        cells[move.rank] = _ARROW.join([move.words, *came_of_it])
        lines.append(cells)
    widths = [max(len(line[rank]) for line in lines) for rank in range(world)]
    return "\n".join(
        f"{number or '':>3} | "
        + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        for number, cells in enumerate(lines)
    )


def replay(start, table):
    """The state that the printed ``table`` ends in, from ``start``."""
    state = start
    for line in table.splitlines()[1:]:
        cells = [cell.strip() for cell in line.split("|")[1:]]
        (rank,) = (rank for rank, cell in enumerate(cells) if cell)
        state = _follow(state, rank, cells[rank].split(_ARROW)[0])
    return state


def _follow(state, rank, words):
    for move, successor in successors(state):
        if (move.rank, move.words) == (rank, words):
            return successor
    raise AssertionError(f"rank {rank} cannot go on like this: {words}")
