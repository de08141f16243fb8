"""The wires and collectives of one rank of the model: each wait is a question to its tape."""

from dataclasses import dataclass

import torch

from tests.protocol.tape import DONE, ENDS_PROCESS, LATE, LOST, NEVER, RAISES, Hear, Join, Suspended, Tape


class Connections:
    """A rank's side of a CPU group, as gloo behaves: a wait that runs out closes every connection of it."""

    def __init__(self, tape, ranks):
        self._tape, self._ranks = tape, ranks
        self._heard = [0] * len(ranks)

    def send(self, tensors, place, tag):
        self._require_open()
        self._tape.sent[self._ranks, self._ranks[place]].append(tensors[0].numpy().tobytes())
        return Sent()

    def recv(self, tensors, place, tag):
        self._require_open()
        self._heard[place] += 1
        return Receiving(self._tape, tensors[0], self._ranks, self._ranks[place], self._heard[place] - 1)

    def _require_open(self):
        if self._ranks in self._tape.control_closed:
            raise RuntimeError("[pair.cc:1] Application timeout caused pair closure")


class Sent:
    """A row on its way. Its own loss shows as the loss of the peer's row, which `exchange` treats alike."""

    def wait(self, timeout):
        pass


@dataclass
class Receiving:
    tape: Tape
    buffer: torch.Tensor
    ranks: tuple[int, ...]
    peer: int
    index: int

    def wait(self, timeout):
        limit = timeout.total_seconds()
        if self.index >= self.tape.num_exchanges[self.ranks]:  # the waits of one exchange share its deadline
            self.tape.num_exchanges[self.ranks] += 1
            self.tape.spend(limit)
        if self.ranks in self.tape.control_closed:
            raise RuntimeError("[pair.cc:1] Application timeout caused pair closure")
        answer = self.tape.ask(Hear(self.ranks, self.peer, self.index, limit))
        if answer in (LOST, LATE):
            self.tape.fail(limit)
        if answer == LATE:
            self.tape.control_closed.add(self.ranks)
            self.tape.pass_time(limit)
            raise RuntimeError("[pair.cc:1] Timed out waiting for recv operation to complete")
        if answer == LOST:
            raise RuntimeError("[pair.cc:1] Connection closed by peer")
        self.buffer.copy_(torch.frombuffer(bytearray(answer), dtype=torch.uint8))


class Device:
    """A rank's side of a device group.

    ``timeout``: seconds that a collective waits, 1800 unless limited. NEVER: for ever, as inside a replayed
    device graph. ENDS_PROCESS: so too, but something ends the process then.
    """

    def __init__(self, tape, ranks, timeout):
        self._ranks = ranks
        self._tape, self._ends_process = tape, timeout == ENDS_PROCESS
        self._has_timeout, self._notices = timeout != NEVER, timeout == RAISES
        self._timeout = None if timeout == NEVER else 1800.0

    def set_timeout(self, timeout):
        if self._has_timeout:
            self._timeout = timeout.total_seconds()

    def _get_sequence_number_for_group(self):
        return len(self._tape.joined[self._ranks])

    def collective(self, rows):
        """Exchange ``rows`` rows with every other rank of the group."""
        self.start(rows).wait()

    def start(self, rows):
        """Begin such a collective; what is returned waits for its end."""
        tape, joined = self._tape, self._tape.joined[self._ranks]
        if self._ranks in tape.device_closed:
            raise RuntimeError("[pair.cc:1] Application timeout caused pair closure")
        joined.append((tape.doing, rows))
        return Joining(self, len(joined) - 1)

    def wait_for(self, index):
        """Wait until every other rank has joined collective ``index``."""
        tape, limit = self._tape, self._timeout
        if limit is not None:
            tape.spend(limit)
        answer = tape.ask(Join(self._ranks, index, limit, self._notices))
        if answer == DONE:
            return
        tape.device_closed.add(self._ranks)
        tape.fail(limit or 0.0)
        if answer == LATE and self._ends_process:
            tape.has_ended = True
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
    side = None

    def __init__(self, tape, ranks, device_timeout):
        self.ranks, self.rank, self.size = ranks, ranks.index(tape.rank), len(ranks)
        self.control, self.device = Connections(tape, ranks), Device(tape, ranks, device_timeout)
