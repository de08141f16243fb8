"""A runner of split prefills, as one rank sees it: its memory, its dummy batches, what it refuses."""

from types import SimpleNamespace

import pytest
import torch

from oproj_pass.capture import ContextBatch
from oproj_pass.errors import ConfigError, EagerStepError
from oproj_pass.runtime import (
    ContextParallelStep,
    PrefillRunner,
    idle_restore_index,
    idle_slots,
)
from oproj_pass.runtime.context_buffers import ContextBuffers

ROWS = {"x": 0, "slots": 0, "table": None}
EXAMPLE = {
    "x": torch.zeros(1, 3),
    "slots": torch.zeros(1, dtype=torch.int64),
    "table": torch.tensor([0, 1]),
}


class Cache:
    """Writes all rows to their slots; returns local rows, and what the table points at."""

    def __init__(self):
        self.values, self.seen = torch.zeros(20, 3), []

    def __call__(self, x, slots, table, context):
        self.seen.append((x.shape[0], x.data_ptr(), context["slots"].data_ptr()))
        slots, rows = context["slots"], context.whole(x)
        self.values[slots[slots >= 0]] = rows[slots >= 0]
        return x + self.values[table[:1]].sum()


def running(fn=None, **options):
    options = {"sizes": [4, 8], "rows": ROWS, "whole": ["slots"], "pad": {"slots": -1}, **options}
    runner = PrefillRunner(fn or Cache(), **options)
    runner.warm_up(EXAMPLE)
    return runner


def brought(rows, slots, table=(19, 19)):
    return {
        "x": torch.tensor(rows)[:, None].expand(-1, 3),
        "slots": torch.tensor(slots),
        "table": torch.tensor(table),
    }


def prefill(*lengths):
    return ContextParallelStep(1, lengths, lengths, [0] * len(lengths))


def test_rows_come_back_in_their_order_and_number():
    """The decode runs in front of the prefill, and comes back behind it."""
    runner, rows = running(), [1.0, 2.0, 3.0, 4.0]
    result = runner.step(brought(rows, [5, 6, 7, 8]), ContextParallelStep(1, [3, 1], [3, 9], [0, 9]))
    assert result[:, 0].tolist() == rows
    assert runner.fn.values[5:9, 0].tolist() == rows


def test_warm_up_writes_nothing_and_runs_every_size():
    runner = running()
    assert [rows for rows, *_ in runner.fn.seen] == [8, 4]
    assert runner.fn.values.eq(0).all()


def test_every_step_of_a_size_reads_the_same_memory():
    runner = running()
    for length in (3, 4, 2):
        runner.step(brought([1.0] * length, [1] * length), prefill(length))
    runner.idle_step({"table": torch.tensor([0, 1])})
    assert len({seen for seen in runner.fn.seen if seen[0] == 4}) == 1


def test_an_idle_step_writes_to_none_of_the_last_batchs_slots():
    runner = running()
    runner.step(brought([5.0, 5.0], [4, 7]), prefill(2))
    runner.fn.values[[4, 7]] = -1.0  # they belong to somebody else now
    runner.idle_step({"table": torch.tensor([3, 3])})
    assert runner.fn.values[[4, 7]].eq(-1).all()


def test_stale_memory_would_write_there():
    runner = running()
    runner.step(brought([5.0, 5.0], [4, 7]), prefill(2))
    runner.fn.values[[4, 7]] = -1.0
    runner._model._buffers._whole.load = lambda *_: None
    runner.idle_step({"table": torch.tensor([3, 3])})
    assert not runner.fn.values[[4, 7]].eq(-1).all()


def test_an_idle_step_needs_the_current_table():
    with pytest.raises(ConfigError, match="an idle step needs the current 'table'"):
        running().idle_step({})


@pytest.mark.parametrize("rank", range(3))
def test_a_dummy_batch_finds_its_rows_on_its_own_rank_and_no_slots(rank):
    group, size = SimpleNamespace(size=3, rank=rank), 4
    buffers = ContextBuffers(EXAMPLE, ROWS, ["slots"], {"slots": -1}, [size], group)
    batch = ContextBatch(3, (5, 2), (True, False))
    buffers.load(brought([1.0] * 7, [*range(7)]), batch, size)
    inputs, dummy = buffers.dummy({"table": torch.tensor([3, 4])})
    arguments, context = buffers.load(inputs, dummy, size)
    assert context.restore_index[0] == idle_restore_index(rank, size)[0]
    assert torch.equal(context["slots"], idle_slots(1, 3, size)[0])
    assert arguments["slots"].eq(-1).all()
    assert arguments["table"].tolist() == [3, 4]


@pytest.mark.parametrize("rank", range(2))
def test_a_rank_reads_its_rows_of_every_input_and_all_of_some(rank):
    group = SimpleNamespace(size=2, rank=rank)
    buffers = ContextBuffers(EXAMPLE, ROWS, ["slots"], {"slots": -1}, [6], group)
    batch = ContextBatch(2, (7, 1), (True, False))
    slots = [10, 11, 12, 13, 14, 15, 16, 3]
    arguments, context = buffers.load(brought([float(slot) for slot in slots], slots), batch, 6)
    held = [slots[row] for row in batch.sources(rank)]
    assert arguments["slots"].tolist() == [*held, *[-1] * (6 - len(held))]
    assert arguments["x"][: len(held), 0].tolist() == held
    assert context["slots"].tolist() == [*slots, *[-1] * 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda step: (step, prefill(4)), "inputs bring 3 rows, num_scheduled adds up to 4"),
        (lambda step: (step, ContextParallelStep(2, [3], [3], [0])), "the requests have pcp_size=2"),
        (lambda step: (brought([1.0] * 9, [1] * 9), prefill(9)), "brings 9 rows to each rank, the largest"),
        (lambda step: ({**step, "table": torch.zeros(3).long()}, prefill(3)), "input 'table' has shape"),
    ],
)
def test_refuses_steps_that_do_not_fit(change, message):
    with pytest.raises(ConfigError, match=message):
        running().step(*change(brought([1.0] * 3, [1, 2, 3])))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": []}, "sizes is empty"),
        ({"sizes": [0]}, "sizes=0 must be at least 1"),
        ({"whole": ["table"]}, "`whole` names 'table', which has no row dimension"),
        ({"fn": lambda context, **_: torch.zeros(3)}, "does not hold the rows"),
    ],
)
def test_refuses_declarations_that_do_not_fit(options, message):
    with pytest.raises(ConfigError, match=message):
        running(**options)


def test_refuses_a_group_that_lacks_a_rank_of_the_context(peer):
    context = SimpleNamespace(size=2, rank=0, ranks=(0, 4))
    with pytest.raises(ConfigError, match=r"group is ranks \[0, 1\], but ranks \[0, 4\] share each prompt"):
        PrefillRunner(Cache(), sizes=[4], rows=ROWS, context=context, group=peer)


def test_refuses_a_group_of_one_rank_where_two_share_each_prompt():
    """There would be nobody to agree with, and the two would still meet in the model."""
    context = SimpleNamespace(size=2, rank=0, ranks=(0, 4))
    alone = SimpleNamespace(ranks=(0,), rank=0)
    with pytest.raises(ConfigError, match=r"group is ranks \[0\], but ranks \[0, 4\] share each prompt"):
        PrefillRunner(Cache(), sizes=[4], rows=ROWS, context=context, group=alone)


def test_refuses_to_gather_what_is_whole_already():
    """Whatever the padding: whole values have P times the rows of local ones."""
    group = SimpleNamespace(size=2, rank=0)
    buffers = ContextBuffers(EXAMPLE, ROWS, ["slots"], {}, [4], group)
    _, context = buffers.load(brought([1.0] * 4, [1] * 4), ContextBatch(2, (4,), (True,)), 4)
    with pytest.raises(ConfigError, match="has 8 rows in dimension 0, this rank's part of the step has 4"):
        context.whole(context["slots"])


def test_serves_only_once_warm():
    runner = PrefillRunner(Cache(), sizes=[4], rows=ROWS)
    with pytest.raises(EagerStepError, match="step needs phase SERVING, the runner is in WARMUP"):
        runner.step({}, prefill(1))
