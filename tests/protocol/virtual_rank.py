"""One rank of the model: the real code, run over a tape of what it heard and stopped where the tape ends.

The code is deterministic, so a rank's history (every answer it got, in order) is its state. To look one
answer further it runs again from the start; nothing of the product knows that the wires, the clock and the
other ranks are not there.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import torch

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
    """The rank waits for row ``index`` of ``peer``."""

    peer: int
    index: int
    timeout: float | None


@dataclass(frozen=True)
class Join:
    """The rank waits in device collective ``index`` for every other. ``notices``: whether one has died."""

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
    """A rank's answers so far, and what it did on the way to the last of them."""

    def __init__(self, answers, rank, world):
        self._answers = iter(answers)
        self.rank, self.world = rank, world
        self.now = 0.0
        self.sent = [[] for _ in range(world)]
        self.joined = []
        self.outcomes = []
        self.control_closed = self.device_closed = False
        self.pending = None
        self.doing, self.number = "", 0
        self.failing_for = None
        self.num_exchanges = 0

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


class Connections:
    """A rank's side of the CPU group, as gloo behaves: a wait that runs out closes every connection."""

    def __init__(self, tape):
        self._tape = tape
        self._heard = [0] * tape.world

    def send(self, tensors, peer, tag):
        self._require_open()
        self._tape.sent[peer].append(tensors[0].numpy().tobytes())
        return Sent()

    def recv(self, tensors, peer, tag):
        self._require_open()
        self._heard[peer] += 1
        return Receiving(self._tape, tensors[0], peer, self._heard[peer] - 1)

    def _require_open(self):
        if self._tape.control_closed:
            raise RuntimeError("[pair.cc:1] Application timeout caused pair closure")


class Sent:
    """A row on its way. Its own loss shows as the loss of the peer's row, which `exchange` treats alike."""

    def wait(self, timeout):
        pass


@dataclass
class Receiving:
    tape: Tape
    buffer: torch.Tensor
    peer: int
    index: int

    def wait(self, timeout):
        limit = timeout.total_seconds()
        if self.index >= self.tape.num_exchanges:  # the waits of one exchange share its deadline
            self.tape.num_exchanges += 1
            self.tape.spend(limit)
        if self.tape.control_closed:
            raise RuntimeError("[pair.cc:1] Application timeout caused pair closure")
        answer = self.tape.ask(Hear(self.peer, self.index, limit))
        if answer in (LOST, LATE):
            self.tape.fail(limit)
        if answer == LATE:
            self.tape.control_closed = True
            self.tape.pass_time(limit)
            raise RuntimeError("[pair.cc:1] Timed out waiting for recv operation to complete")
        if answer == LOST:
            raise RuntimeError("[pair.cc:1] Connection closed by peer")
        self.buffer.copy_(torch.frombuffer(bytearray(answer), dtype=torch.uint8))


class Device:
    """A rank's side of the device group.

    ``timeout``: seconds that a collective waits, 1800 unless limited. NEVER: for ever, as inside a replayed
    device graph. ENDS_PROCESS: so too, but something ends the process then.
    """

    def __init__(self, tape, timeout):
        self._tape, self._ends_process = tape, timeout == ENDS_PROCESS
        self._has_timeout, self._notices = timeout != NEVER, timeout == RAISES
        self._timeout = None if timeout == NEVER else 1800.0

    def set_timeout(self, timeout):
        if self._has_timeout:
            self._timeout = timeout.total_seconds()

    def collective(self, rows):
        """Exchange ``rows`` rows with every other rank."""
        self.start(rows).wait()

    def start(self, rows):
        """Begin such a collective; what is returned waits for its end."""
        tape = self._tape
        if tape.device_closed:
            raise RuntimeError("[pair.cc:1] Application timeout caused pair closure")
        tape.joined.append((tape.doing, rows))
        return Joining(self, len(tape.joined) - 1)

    def wait_for(self, index):
        """Wait until every other rank has joined collective ``index``."""
        tape, limit = self._tape, self._timeout
        if limit is not None:
            tape.spend(limit)
        answer = tape.ask(Join(index, limit, self._notices))
        if answer == DONE:
            return
        tape.device_closed = True
        tape.fail(limit or 0.0)
        if answer == LATE and self._ends_process:
            tape.control_closed = True
            raise Suspended
        if answer == LATE:
            tape.pass_time(limit)
            raise RuntimeError("[unbound_buffer.cc:1] Timed out waiting for recv operation to complete")
        raise RuntimeError("[pair.cc:1] Connection closed by peer")


@dataclass
class Joining:
    device: Device
    index: int

    def wait(self, timeout=None):
        self.device.wait_for(self.index)


class VirtualGroup:
    """Stands in for a ``ShardGroup`` over the tape."""

    has_peers = is_alive = True
    is_given = False

    def __init__(self, tape, device_timeout):
        self.ranks, self.rank, self.size = tuple(range(tape.world)), tape.rank, tape.world
        self.control, self.device = Connections(tape), Device(tape, device_timeout)


class VirtualRank:
    """What a program may do with its rank.

    ``group``: the ranks, see ``VirtualGroup``. ``bound``: seconds within which a failing call ends.
    """

    def __init__(self, tape, device_timeout):
        self.tape, self.group = tape, VirtualGroup(tape, device_timeout)
        self.bound = None

    def choose(self, *options, harmful=True):
        return self.tape.choose(*options, harmful=harmful)

    def attempt(self, doing, call, judge):
        """Run one call of the program and note what became of it; ``judge(error)``: what an error means."""
        tape = self.tape
        tape.doing, tape.failing_for = doing, None
        result, text = SERVED, ""
        try:
            call()
        except Exception as error:
            result, text = judge(error), f"{type(error).__name__}: {error}"
        if self.bound is not None and (tape.failing_for or 0) > self.bound + 0.1:
            text = (
                f"{tape.failing_for:g} s from the first failed wait to the error, {self.bound:g} s promised"
            )
            result = SLOW
        tape.outcomes.append(Outcome(tape.number, doing, result, text))
        tape.number += 1

    def skip(self):
        """Leave out a call that the peers make."""
        self.tape.number += 1


class Clock:
    """In the place of the module ``time`` in the product: the clock of the rank that runs."""

    def __init__(self):
        self.tape = None

    def monotonic(self):
        return self.tape.now


class Local:
    """A rank in one of its states; ``pending`` is what it waits for, None when its program has ended."""

    def __init__(self, ranks, rank, answers):
        self._ranks, self.rank, self.answers = ranks, rank, answers
        tape = ranks.run(rank, answers)
        self.pending, self.outcomes = tape.pending, tuple(tape.outcomes)
        self.sent, self.joined = tuple(map(tuple, tape.sent)), tuple(tape.joined)
        self.control_closed, self.device_closed = tape.control_closed, tape.device_closed
        self._next = {}

    def after(self, answer):
        """The state after one more answer."""
        if answer not in self._next:
            self._next[answer] = Local(self._ranks, self.rank, (*self.answers, answer))
        return self._next[answer]


class Ranks:
    """The ranks of one program, and every state of theirs that was asked for."""

    def __init__(self, program, world, clock, device_timeout=RAISES):
        self._program, self.world, self._clock = program, world, clock
        self._device_timeout = device_timeout
        self.num_runs = 0

    @cached_property
    def starts(self):
        return tuple(Local(self, rank, ()) for rank in range(self.world))

    def run(self, rank, answers):
        self.num_runs += 1
        self._clock.tape = tape = Tape(answers, rank, self.world)
        with suppress(Suspended):
            self._program(VirtualRank(tape, self._device_timeout))
        return tape
