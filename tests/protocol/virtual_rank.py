"""One rank of the model: the real code, run over a tape of what it heard and stopped where the tape ends.

The code is deterministic, so a rank's history (every answer it got, in order) is its state. To look one
answer further it runs again from the start; nothing of the product knows that the wires, the clock and the
other ranks are not there.
"""

from contextlib import suppress
from functools import cached_property

from tests.protocol.tape import RAISES, SERVED, SLOW, Hear, Outcome, Suspended, Tape
from tests.protocol.virtual_group import VirtualGroup


class VirtualRank:
    """What a program may do with its rank.

    ``group``: all ranks, see ``VirtualGroup``. ``bound``: seconds within which a failing call ends.
    """

    def __init__(self, tape, device_timeout):
        self.tape, self._device_timeout = tape, device_timeout
        self._groups = {}
        self.group = self.group_of(tape.world)
        self.bound = None

    def group_of(self, size):
        """This rank's group of ``size`` consecutive ranks."""
        if size not in self._groups:
            start = self.tape.rank // size * size
            ranks = tuple(range(start, start + size))
            self._groups[size] = VirtualGroup(self.tape, ranks, self._device_timeout)
        return self._groups[size]

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


class Local:
    """A rank in one of its states; ``pending`` is what it waits for, None when its program has ended."""

    def __init__(self, ranks, rank, answers):
        self._ranks, self.rank, self.answers = ranks, rank, answers
        tape = ranks.run(rank, answers)
        self.pending, self.outcomes = tape.pending, tuple(tape.outcomes)
        self.sent, self.joined = dict(tape.sent), dict(tape.joined)
        self._control_closed, self._device_closed = tape.control_closed, tape.device_closed
        self._has_ended = tape.has_ended
        self._next = {}

    def gave_up(self, wait):
        """Whether it closed the connections over which a peer is in ``wait``."""
        closed = self._control_closed if isinstance(wait, Hear) else self._device_closed
        return self._has_ended or wait.ranks in closed

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
