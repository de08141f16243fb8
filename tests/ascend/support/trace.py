"""The trace of a captured model, in the form that npugraph_ex's deadlock check reads, from the device's log.

A task is an event in Chrome's trace format; tasks of a stream run in the order of their ids. HCCL gives each
communicator a stream, where a collective waits for the compute stream, runs, and records an event that the
compute stream waits for where it needs the result. The log has all of that but the collective itself.
"""

import importlib.util
import json

from oproj_pass.passes.graph.collectives import is_collective
from tests.ascend.cann.build import wheel_folder
from tests.support import streams

VECTOR_CORES = 48


def captured_models(events):
    """The lines between begin and end of each capture that holds any, with the stream it began on."""
    models = []
    for line in events:
        if line.startswith("capture begin"):
            models.append((line.split("stream=")[1].split(" ")[0], []))
        elif line.endswith(" capturing"):
            models[-1][1].append(line)
    return [model for model in models if model[1]]


def trace_of(model, names):
    """The tasks of one model; ``names``: its collectives in the order of issue, each on all vector cores."""
    compute, lines = model
    tasks, handles, names = [], {}, iter(names)

    def task(stream, name, **details):
        args = {"Task Id": len(tasks), "Stream Id": int(stream), **details}
        tasks.append(
            {"ph": "X", "ts": len(tasks), "dur": 1, "tid": f"stream{stream}", "name": name, "args": args}
        )

    for line in lines:
        what, event, stream, _ = line.split(" ")
        event, stream = event.split("=")[1], stream.split("=")[1]
        if what == "record":
            handles[event] = len(tasks)
            task(stream, f"EVENT_RECORD_{handles[event]}")
        else:
            task(stream, f"EVENT_WAIT_{handles[event]}")
            if stream != compute:
                task(stream, f"aiv_{next(names)}", **_ON_ALL_CORES)
    assert next(names, None) is None
    return json.dumps(tasks)


def deadlock_check():
    """npugraph_ex's own, which needs neither torch_npu nor a device."""
    path = wheel_folder() / "dynamo/npugraph_ex/tools/aclgraph_check/deadlock_check.py"
    spec = importlib.util.spec_from_file_location("deadlock_check", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.deadlock_check


def is_risky(graph, folder, capsys):
    """Whether that check finds that a graph on ``PlainStreams`` may deadlock."""
    schedule = folder / "schedule.json"
    schedule.write_text(json.dumps(_tasks(graph)))
    deadlock_check()(str(schedule), str(folder / "report.json"), VECTOR_CORES)
    return "No deadlock risks" not in capsys.readouterr().out


def _tasks(graph):
    """The schedule as the device's profiler would dump it; a collective wants all vector cores at once."""
    handles, numbers, tasks = {}, {}, []
    for number, (node, stream) in enumerate(streams.streams_of(graph).items()):
        kind, name, cores = "KERNEL_AICORE", node.name, 0
        if node.target in (streams.record, streams.wait):
            handle = handles.setdefault(node.args[0], len(handles))
            kind = "EVENT_RECORD" if node.target is streams.record else "EVENT_WAIT"
            name = f"{kind}_{handle}"
        elif is_collective(node):
            kind, name, cores = "KERNEL_AIVEC", f"aiv_{node.name}", VECTOR_CORES
        arguments = {"Task Type": kind, "Task Id": number, "Numblocks": cores, "Schem Mode": int(bool(cores))}
        tid = numbers.setdefault(stream, len(numbers))
        tasks.append(
            {"ph": "X", "tid": f"stream{tid}", "name": name, "ts": number, "dur": 1, "args": arguments}
        )
    return tasks


_ON_ALL_CORES = {"Task Type": "KERNEL_AIVEC", "Numblocks": VECTOR_CORES, "Schem Mode": 1}
