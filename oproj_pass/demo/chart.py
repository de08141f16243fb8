"""Draws how many tokens each rank brought to each step, and the size that its group replayed."""

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from oproj_pass.demo.facts import DemoFacts

_WIDTH = 84
_BARS = "▂▃▄▅▆▇█"


def load_chart(facts: DemoFacts) -> Group:
    """A line for each rank, and under each group the captured sizes that it replayed, one mark a step.

    Runs of more than 84 steps draw several steps as one mark, by the fullest of them.
    """
    num_steps = len(facts.ranks[0].loads)
    stride = -(-num_steps // _WIDTH)
    largest = facts.plan.max_size
    lines = []
    for start in range(0, len(facts.ranks), facts.tensor_parallel_size):
        group = facts.ranks[start : start + facts.tensor_parallel_size]
        for rank in group:
            marks = [_bar(load, largest) for load in _fullest(rank.loads, stride)]
            lines.append(Text(f"rank {rank.rank}    ").append("".join(marks), "cyan"))
        sizes = "".join(map(str, _fullest(group[0].sizes, stride)))
        lines.append(Text(f"replayed  {sizes}\n", "dim"))
    scale = ", ".join(f"{_bar(load, largest)} {load}" for load in range(1, largest + 1))
    captured = " and ".join(map(str, facts.plan.sizes))
    lines.append(
        Text(
            f"{num_steps} steps, {stride} a mark. Tokens that a rank brings: · idle, {scale}. "
            f"Captured sizes {captured} cover every step up to {facts.plan.bound.max_decode_tokens}.",
            "dim",
        )
    )
    return Group(*lines)


def load_marks(loads: Sequence[int], largest: int) -> str:
    """One mark a rank, as the chart draws a step's loads."""
    return "ranks " + " ".join(_bar(load, largest) for load in loads)


def _fullest(values: Sequence[int], stride: int) -> list[int]:
    return [max(values[start : start + stride]) for start in range(0, len(values), stride)]


def _bar(load: int, largest: int) -> str:
    return _BARS[round(load / largest * (len(_BARS) - 1))] if load else "·"
