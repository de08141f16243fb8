import pytest
import torch

from oproj_pass.capture import GraphMode, StepBound, plan_capture
from oproj_pass.runtime import DecodeRunner, Replies, StepKind, StepRow


class ScriptedPeer:
    """A group of two in one process: this rank, and a peer that brings what the test scripts."""

    ranks, rank = (0, 1), 0

    def __init__(self):
        self.num_tokens, self.mode, self.reason, self.lost = 1, GraphMode.FULL, "", None
        self.gathers, self.cannot_gather, self.gathers_others = False, "", False
        self.rows = []

    def exchange(self, row, timeout):
        mine = StepRow.unpack(row)
        self.rows.append(mine)
        if self.lost:
            return Replies({0: row}, {1: self.lost})
        serving = mine.kind is StepKind.STEP
        tokens = self.num_tokens if serving else mine.num_tokens
        mode = self.mode if serving else mine.mode
        reason = self.cannot_gather if mine.kind is StepKind.GATHER else self.reason
        tokens += self.gathers_others and mine.kind is StepKind.GATHER
        gathers = self.gathers and serving
        theirs = StepRow(mine.runner, mine.kind, mine.sequence, tokens, mode, reason, gathers)
        return Replies({0: row, 1: theirs.pack()})

    def limit_collectives(self, timeout):
        self.limit = timeout


@pytest.fixture
def peer():
    return ScriptedPeer()


@pytest.fixture
def plan():
    return plan_capture(StepBound(16, 64), sizes=[1, 4, 8, 16])


def double(x):
    return 2 * x


@pytest.fixture
def serving(plan):
    """Builds a captured runner; alone in its group unless one is given."""

    def build(fn=double, *, rows=None, example=None, **options):
        plan_ = options.pop("plan", plan)
        runner = DecodeRunner(fn, plan_, rows=rows or {"x": 0}, **options)
        runner.capture(example or {"x": torch.zeros(1, 3)})
        return runner

    return build


@pytest.fixture
def batch():
    """Rows whose values all differ."""
    return lambda num_tokens: torch.arange(1.0, 3 * num_tokens + 1).view(num_tokens, 3)
