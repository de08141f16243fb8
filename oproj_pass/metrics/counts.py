"""Plain numbers of steps. One thread adds to them, about 1.5 us a step on a CPU; any thread may read them."""

from bisect import bisect_left
from collections import Counter
from itertools import accumulate

BOUNDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    60.0,
)  # fmt: skip
"""Upper bounds of the buckets of ``Durations``, in seconds."""

STEP_KINDS = ("replayed", "eager", "wide")
"""How a step ran: as a replay of a captured graph; eager; or unsharded, its weights gathered."""


class Durations:
    """How often something took up to each of ``BOUNDS`` seconds, or longer, and how long in all."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """One that took that long."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    @property
    def cumulative(self) -> list[int]:
        """How many took up to each bound, all of them last."""
        return list(accumulate(self.counts))


class StepCounts:
    """What the steps of one runner, or of one engine, came to since it was made.

    Attributes:
        steps: that ran, by one of ``STEP_KINDS``; those in which this rank was idle included.
        idle_steps: in which this rank took part without requests.
        refusals: by reason.
        agreements: how long the ranks took to agree on a step, mostly waiting for the slowest of them.
        sent_nbytes: that this rank sent to others in its steps; None once there was a step whose bytes are
            not known.
    """

    def __init__(self) -> None:
        self.steps = Counter(dict.fromkeys(STEP_KINDS, 0))
        self.idle_steps = 0
        self.refusals: Counter[str] = Counter()
        self.agreements = Durations()
        self.sent_nbytes: int | None = 0

    def add_step(self, kind: str, sent_nbytes: int | None, *, idle: bool) -> None:
        """A step ran; ``kind``: one of ``STEP_KINDS``."""
        self.steps[kind] += 1
        self.idle_steps += idle
        self.add_sent(sent_nbytes)

    def add_sent(self, nbytes: int | None) -> None:
        """This rank sent so much; None: it is not known how much."""
        if self.sent_nbytes is not None:
            self.sent_nbytes = None if nbytes is None else self.sent_nbytes + nbytes
