"""The runner takes the device memory of its persistent inputs and nothing else, however many steps it runs.

Counted on the meta device, which stands for the device here: whatever is allocated on it passes a dispatch.
"""

from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oproj_pass.capture import GraphMode
from oproj_pass.errors import EagerStepError
from oproj_pass.runtime import (
    CallableGraphs,
    ContextParallelStep,
    DecodeRunner,
    idle_restore_index,
    idle_slots,
    local_slots,
)

ROWS = {"x": 0, "slots": 0, "table": None}


class Allocated(TorchDispatchMode):
    """Bytes of every storage on the meta device that first appears inside."""

    def __init__(self):
        super().__init__()
        self.seen, self.nbytes = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._note((args, kwargs), 0)
        result = func(*args, **(kwargs or {}))
        self._note(result, 1)
        return result

    def _note(self, values, counts):
        for value in tree_leaves(values):
            if isinstance(value, torch.Tensor) and value.device.type == "meta":
                storage = value.untyped_storage()
                if storage._cdata not in self.seen:
                    self.seen[storage._cdata] = storage  # kept, so that no later one has its identity
                    self.nbytes += counts * storage.nbytes()


def inputs(num_tokens):
    return {
        "x": torch.zeros(num_tokens, 3, device="meta"),
        "slots": torch.zeros(num_tokens, dtype=torch.long, device="meta"),
        "table": torch.zeros(5, dtype=torch.long, device="meta"),
    }


@pytest.fixture
def captured(plan, peer):
    """A runner whose model allocates nothing, and the bytes its capture took."""
    example = inputs(1)
    with Allocated() as allocated:
        runner = DecodeRunner(
            lambda x, slots, table: x, plan, rows=ROWS, pad={"slots": -1}, group=peer, graphs=CallableGraphs()
        )
        runner.capture(example)
    return runner, allocated.nbytes


@contextmanager
def nothing_allocated():
    with Allocated() as allocated:
        yield
    assert allocated.nbytes == 0


def test_capture_takes_the_largest_sizes_inputs_and_an_element_of_padding_each(captured, plan):
    _, nbytes = captured
    largest = plan.max_size * (3 * 4 + 8) + 5 * 8
    assert nbytes == largest + 4 + 8


def test_the_count_sees_a_buffer_more(captured):
    with Allocated() as allocated:
        torch.empty(7, device="meta")
    assert allocated.nbytes == 28


def test_steps_idle_steps_and_refusals_take_none(captured, peer):
    runner, _ = captured
    step, current = inputs(3), {"table": inputs(1)["table"]}
    pcp = ContextParallelStep(2, [1, 2], [9, 9], [9, 9])
    with nothing_allocated():
        runner.step(step)
        runner.step(step, num_tokens=pcp.num_tokens)
        runner.idle_step(current)
        for refused in ({"mode": GraphMode.NONE}, {"uniform_decode": False}, {"num_tokens": 40}):
            with pytest.raises(EagerStepError):
                runner.step(step, **refused)


def test_context_parallel_parts_are_views_and_dummies_as_long_as_their_tokens():
    slots = torch.zeros(2, 12, dtype=torch.long, device="meta")
    with nothing_allocated():
        local_slots(slots, 4, 1)
    with Allocated() as allocated:
        idle_slots(2, 4, 3, torch.device("meta"))
        idle_restore_index(1, 3, torch.device("meta"))
    assert allocated.nbytes == 2 * 4 * 3 * 8 + 3 * 8
