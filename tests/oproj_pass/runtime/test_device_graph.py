"""Accelerator graphs, checked against a recording stand-in for torch.cuda and torch.npu: no device here."""

from contextlib import contextmanager

import pytest
import torch

from oproj_pass.errors import ConfigError
from oproj_pass.runtime import AcceleratorGraphs, CallableGraphs, DecodeRunner, device_graphs


class RecordingDevice:
    """The part of torch.cuda's and torch.npu's API that graphs use, noting each call."""

    def __init__(self):
        self.events, self.recording = [], None

    def graph_pool_handle(self):
        return "the pool"

    def Stream(self):
        return "the stream"

    def synchronize(self):
        self.events.append("synchronize")

    @contextmanager
    def graph(self, graph, pool, stream):
        self.events.append(("begin", pool, stream))
        self.recording = graph
        yield
        self.recording = None
        self.events.append("end")

    def graph_type(self):
        return RecordedGraph(self)


class RecordedGraph:
    def __init__(self, device):
        self.device, self.kernels = device, []

    def replay(self):
        self.device.events.append("replay")
        for kernel in self.kernels:
            kernel()


def doubling(device):
    """A model that writes one output buffer, recording itself while its device captures."""

    def model(x):
        output = torch.empty_like(x)

        def kernel():
            output.copy_(2 * x)

        if device.recording is not None:
            device.recording.kernels.append(kernel)
        kernel()
        return output

    return model


@pytest.fixture
def device():
    return RecordingDevice()


def test_captures_on_one_stream_into_one_pool_and_replays_without_calling_the_model(device, plan, batch):
    calls = []
    model = doubling(device)
    runner = DecodeRunner(
        lambda x: calls.append(len(x)) or model(x),
        plan,
        rows={"x": 0},
        graphs=AcceleratorGraphs(device, device.graph_type),
    )
    runner.capture({"x": batch(1)})
    assert device.events == ["synchronize", ("begin", "the pool", "the stream"), "end"] * len(plan.sizes)
    device.events.clear()
    calls.clear()
    first = runner.step({"x": batch(3)})
    assert torch.equal(first, 2 * batch(3))
    second = runner.step({"x": -batch(3)})
    assert torch.equal(second, -2 * batch(3))
    assert (device.events, calls) == (["replay", "replay"], [])
    assert first.data_ptr() == second.data_ptr()


def test_every_size_is_warmed_up_before_it_is_captured(device, plan, batch):
    order = []

    def model(x):
        order.append((len(x), device.recording is not None))
        return x

    graphs = AcceleratorGraphs(device, device.graph_type)
    DecodeRunner(model, plan, rows={"x": 0}, graphs=graphs).capture({"x": batch(1)})
    for size in plan.sizes:
        recorded = [captured for rows, captured in order if rows == size]
        assert recorded == [False, False, True]


def test_chooses_graphs_by_device():
    assert isinstance(device_graphs(torch.device("cpu")), CallableGraphs)
    with pytest.raises(ConfigError, match="no device graphs for 'xpu'"):
        device_graphs(torch.device("xpu"))
