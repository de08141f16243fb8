"""npugraph_ex's own deadlock check accepts the schedule of our captured graphs, and rejects a sabotaged one.

Both were captured over real HCCL communicators and are read from the device's log. The communicators have two
ranks, of which one never comes: the stub moves nothing.
"""

import pytest

from tests.ascend.support import serving
from tests.ascend.support.trace import VECTOR_CORES, captured_models, deadlock_check, trace_of

LAYERS = 2
COLLECTIVES = ["all_to_all", "reduce_scatter"] * LAYERS


def capture_both():
    import torch.distributed as dist

    dist.init_process_group("hccl", store=dist.HashStore(), rank=0, world_size=2)
    capture_ours()
    capture_sabotaged()


def capture_ours():
    """A sharded decoder of two layers, by npugraph_ex."""
    import torch.distributed as dist

    from oproj_pass import groups

    class AloneInHccl(groups.ShardGroup):
        has_peers = False

    control = dist.new_group(backend="fake")
    groups._GROUPS[dist.group.WORLD] = {((0, 1), None): AloneInHccl(dist.group.WORLD, control, (0, 1), 0)}
    step = serving.sharded(serving.decoder(LAYERS), dynamic=False, ranks=2)
    serving.runner_of(step, [2]).capture({"x": serving.rows(1)})


def capture_sabotaged():
    """The same collectives over two communicators in turn, none waited for before the next one begins."""
    import torch
    import torch.distributed as dist

    names = [dist.group.WORLD.group_name, dist.new_group().group_name]
    rows = torch.zeros(4, 8, device="npu")
    c10d = torch.ops._c10d_functional
    for name in names:
        c10d.wait_tensor(c10d.all_reduce(rows, "sum", name))  # makes the communicator, outside the capture
    with torch.npu.graph(torch.npu.NPUGraph()):
        pending = []
        for _ in range(LAYERS):
            pending.append(c10d.all_to_all_single(rows, [2, 2], [2, 2], names[0]))
            pending.append(c10d.reduce_scatter_tensor(rows, "sum", 2, names[1]))
        for result in pending:
            c10d.wait_tensor(result)


@pytest.fixture(scope="module")
def schedules(npu_process):
    ours, sabotaged = captured_models(npu_process(capture_both).events)
    return {"ours": ours, "sabotaged": sabotaged}


@pytest.fixture
def check(tmp_path, capsys):
    """The wheel's own check, loaded without torch_npu; returns what it says and whether it marked tasks."""

    def run(schedule):
        before, after = tmp_path / "trace.json", tmp_path / "marked.json"
        before.write_text(trace_of(schedule, COLLECTIVES))
        deadlock_check()(str(before), str(after), VECTOR_CORES)
        return capsys.readouterr().out, after.exists()

    return run


def streams(schedule):
    return {line.split("stream=")[1].split(" ")[0] for line in schedule[1]}


def test_accepts_the_schedule_of_a_captured_decoder(schedules, check):
    assert len(streams(schedules["ours"])) == 2
    said, marked = check(schedules["ours"])
    assert "No deadlock risks detected" in said
    assert not marked


def test_rejects_collectives_of_two_communicators_at_once(schedules, check):
    assert len(streams(schedules["sabotaged"])) == 3
    said, marked = check(schedules["sabotaged"])
    assert "Deadlock risk detected" in said
    assert "aiv_all_to_all" in said
    assert "aiv_reduce_scatter" in said
    assert marked


def test_rejects_our_schedule_without_its_waits(schedules, check):
    compute, lines = schedules["ours"]
    apart = iter(range(100, 200))
    unordered = [
        line.replace(f"stream={stream}", f"stream={next(apart)}")
        if (stream := _stream(line)) != compute
        else line
        for line in lines
        if not (line.startswith("wait") and _stream(line) == compute)
    ]
    said, _ = check((compute, unordered))
    assert "Deadlock risk detected" in said


def _stream(line):
    return line.split("stream=")[1].split(" ")[0]
