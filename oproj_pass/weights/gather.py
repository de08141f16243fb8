"""Brings full values of released weights in a known order, each gathered just ahead of its use.

Two buffers, each as large as the largest entry of the order: while the model computes with the weight in one,
the parts of the next one arrive in the other. Parts that lie in a weight's own order in memory (a cut of its
outermost dimension) are the weight once they have arrived; others are copied from one buffer to the other.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import Work

from oproj_pass.agreement.barrier import require_whole
from oproj_pass.agreement.half_done import note_half_done
from oproj_pass.agreement.step_group import ControlGroup
from oproj_pass.errors import ConfigError, EagerStepError
from oproj_pass.weights.gather_layout import Entry
from oproj_pass.weights.gather_order import Order
from oproj_pass.weights.shard import Shard
from oproj_pass.weights.stand_in import reads_served_by
from oproj_pass.weights.storages import unknown_owners

_POLL = 0.0005  # seconds


class GatheredWeights:
    """The full values of the weights of ``order``, for one step after the other.

    ``timeout``: seconds that a gather waits for a rank. Raises ``ConfigError`` for weights on several devices
    or a part with gaps in memory, and what the allocator raises where there is no memory for the buffers.
    """

    def __init__(self, order: Order, timeout: float) -> None:
        self._entries, self._timeout = [Entry.of(shards) for shards in order], timeout
        self._groups = list(dict.fromkeys(shard.placement.holders for entry in order for shard in entry))
        self.buffer_nbytes = max((entry.nbytes for entry in self._entries), default=0)
        self.sent_nbytes = sum(entry.sent_nbytes for entry in self._entries)
        device = _only_device(order)
        self._arriving, self._whole = (self._buffer(device) for _ in range(2))
        self._works: list[Work] = []
        self._next = 0
        self._current: Mapping[Shard, Tensor] = {}

    def limit_collectives(self) -> None:
        """Let the gathers wait no longer than a step's agreement does."""
        for group in self._groups:
            ControlGroup(group).limit_collectives(self._timeout)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve the reads of one step; every holder of the weights makes it too.

        Raises ``EagerStepError`` for reads in another order, ``GroupMismatchError`` where an earlier call
        may have left half a collective. After an error the groups serve no more.
        """
        for group in self._groups:
            require_whole(group)
        self._next, self._current = 0, {}
        try:
            self._start_next()
            with reads_served_by(self._full_values):
                yield
            self._require_all_read()
        except BaseException as error:
            for group in self._groups:
                note_half_done(group.device, f"a wide step failed: {type(error).__name__}: {error}")
            raise
        finally:
            self._current = {}

    def _full_values(self, shards: Sequence[Shard]) -> list[Tensor]:
        if not all(shard in self._current for shard in shards):
            self._require_next(shards)
            self._advance()
        return [self._current[shard] for shard in shards]

    def _advance(self) -> None:
        entry = self._entries[self._next]
        self._current = {}
        self._wait()
        self._require_free(self._whole)
        if entry.is_in_order:
            self._arriving, self._whole = self._whole, self._arriving
            self._current = entry.full_in(self._whole)
        else:
            self._current = entry.assembled(self._arriving, self._whole)
        self._next += 1
        self._start_next()

    def _start_next(self) -> None:
        if self._next < len(self._entries):
            self._works = self._entries[self._next].start(self._arriving)

    def _wait(self) -> None:
        while self._works:
            work = self._works.pop()
            if self._arriving.is_cpu:
                work.wait(timedelta(seconds=self._timeout))
            else:
                work.wait()  # the current stream does, for as long as the group's timeout allows

    def _require_free(self, buffer: Tensor) -> None:
        """A collective's own thread may still be letting go of it; a model that holds it never does."""
        deadline = time.monotonic() + self._timeout / 2
        while unknown_owners(buffer, [buffer]):
            if time.monotonic() > deadline:
                raise EagerStepError(
                    f"{self._entries[self._next - 1].names}: the model still holds the full weight when "
                    "another one is to take its memory, which it did not at capture"
                )
            time.sleep(_POLL)

    def _require_next(self, shards: Sequence[Shard]) -> None:
        expected = self._entries[self._next] if self._next < len(self._entries) else None
        if expected is None or not set(shards) <= {part.shard for part in expected.parts}:
            raise EagerStepError(
                f"the model reads {shards[0].path}, and {expected.names if expected else 'no weight'} comes "
                "next in the order that it read them in at capture. Which layers run, and in which order, "
                "may not depend on the batch"
            )

    def _require_all_read(self) -> None:
        if self._next < len(self._entries):
            raise EagerStepError(
                f"the model read {self._next} of the {len(self._entries)} weights that it read at capture, "
                f"and not {self._entries[self._next].names}"
            )

    def _buffer(self, device: torch.device | None) -> Tensor:
        with torch.inference_mode(False):
            return torch.empty(self.buffer_nbytes, dtype=torch.uint8, device=device)


def _only_device(order: Order) -> torch.device | None:
    devices = dict.fromkeys(shard.signature.device for entry in order for shard in entry)
    if len(devices) > 1:
        raise ConfigError(f"its weights lie on several devices: {', '.join(map(str, devices))}")
    return next(iter(devices), None)
