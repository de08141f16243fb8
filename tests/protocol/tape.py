"""What one rank of the model heard so far, and what it waits for where that ends."""

from collections import Counter, defaultdict
from dataclasses import dataclass

DONE, LOST, LATE = "done", "loses", "waits in vain for"
NEVER, ENDS_PROCESS, RAISES = "never", "ends the process", "raises"
SERVED, REFUSED, STOPPED, FAILED, RAW, SLOW = "served", "refused", "stopped", "failed", "raw", "slow"


@dataclass(frozen=True)
class Choose:
    """The rank decides something by itself. The first option is free, the others use up a choice.

    ``harmful``: the others may stop the group.
    """

    options: tuple[str, ...]
    harmful: bool


@dataclass(frozen=True)
class Hear:
    """The rank waits for row ``index`` of ``peer`` over the wires of the group of ``ranks``."""

    ranks: tuple[int, ...]
    peer: int
    index: int
    timeout: float | None


@dataclass(frozen=True)
class Join:
    """The rank waits in device collective ``index`` of ``ranks``. ``notices``: whether one has died."""

    ranks: tuple[int, ...]
    index: int
    timeout: float | None
    notices: bool


@dataclass(frozen=True)
class Outcome:
    """What became of one call, the ``number``-th of the program.

    ``result``: REFUSED, which every rank does or none; STOPPED, after which nothing may be served; FAILED, on
    this rank alone; RAW and SLOW, which may not be.
    """

    number: int
    doing: str
    result: str
    error: str = ""


class Suspended(BaseException):
    """The tape has ended: the rank waits for an answer. No handler of the product takes it for an error."""


class Tape:
    """A rank's answers so far, and what it did on the way to the last of them.

    ``sent``: rows by group and peer; ``joined``: collectives by group; ``control_closed`` and
    ``device_closed``: the groups whose connections it gave up, all of them where it ``has_ended``.
    """

    def __init__(self, answers, rank, world):
        self._answers = iter(answers)
        self.rank, self.world = rank, world
        self.now = 0.0
        self.sent = defaultdict(list)
        self.joined = defaultdict(list)
        self.outcomes = []
        self.control_closed, self.device_closed = set(), set()
        self.has_ended = False
        self.pending = None
        self.doing, self.number = "", 0
        self.failing_for = None
        self.num_exchanges = Counter()

    def ask(self, wait):
        """The answer to ``wait``, or the end of this run."""
        answer = next(self._answers, None)
        if answer is None:
            self.pending = wait
            raise Suspended
        return answer

    def choose(self, *options, harmful=True):
        """One of ``options``, see ``Choose``."""
        return self.ask(Choose(options, harmful))

    def pass_time(self, seconds):
        """A wait ended by its own clock."""
        self.now += seconds

    def spend(self, limit):
        """Another wait of at most ``limit`` seconds begins: what a failing call may take in all."""
        if self.failing_for is not None:
            self.failing_for += limit

    def fail(self, limit):
        """The wait of at most ``limit`` seconds that began last did not end well."""
        if self.failing_for is None:
            self.failing_for = limit


class Clock:
    """In the place of the module ``time`` in the product: the clock of the rank that runs."""

    def __init__(self):
        self.tape = None

    def monotonic(self):
        return self.tape.now
