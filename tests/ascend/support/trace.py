"""The trace of a captured model, in the form that npugraph_ex's deadlock check reads, from the device's log.

A task is an event in Chrome's trace format; tasks of a stream run in the order of their ids. HCCL gives each
communicator a stream, where a collective waits for the compute stream, runs, and records an event that the
compute stream waits for where it needs the result. The log has all of that but the collective itself.
"""

import json

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


_ON_ALL_CORES = {"Task Type": "KERNEL_AIVEC", "Numblocks": VECTOR_CORES, "Schem Mode": 1}
