"""Device graphs behind one protocol: capture a call once, then replay it over the same memory.

``CallableGraphs`` replays by calling again, on any device. ``AcceleratorGraphs`` records real graphs through
the API that ``torch.cuda`` and ``torch.npu`` share; it was never run on a GPU or an NPU, see docs/runtime.md.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any, Protocol

import torch

from oproj_pass.devices import DEVICES
from oproj_pass.errors import ConfigError
from oproj_pass.profiling import profiled

Call = Callable[[], Any]

CAPTURING = Lock()  # of the process: while a graph is captured, no thread may ask a device whether it is done


class Graph(Protocol):
    """One captured call."""

    def replay(self) -> Any:
        """Run the call again over the memory it was captured with; returns its output."""


class DeviceGraphs(Protocol):
    """Captures calls of one device; all its graphs share one memory pool."""

    def capture(self, call: Call) -> Graph:
        """Capture ``call``, which has run before and must not compile or allocate anything lasting."""


class CallableGraph:
    """A captured call that is simply called again."""

    def __init__(self, call: Call) -> None:
        self.replay = profiled("oproj_pass::replay")(call)


class CallableGraphs:
    """The graphs of a device without graphs; memory comes from its ordinary allocator."""

    def capture(self, call: Call) -> CallableGraph:
        """Keep ``call`` for replay."""
        return CallableGraph(call)


class AcceleratorGraph:
    """A recorded graph and the output it writes to."""

    def __init__(self, graph: Any, output: Any) -> None:
        self._graph, self._output = graph, output

    @profiled("oproj_pass::replay")
    def replay(self) -> Any:
        """Launch the graph on the current stream; the output holds the results once the stream gets there."""
        self._graph.replay()
        return self._output


class AcceleratorGraphs:
    """CUDA graphs or NPU graphs, sharing one pool: a replay overwrites the outputs of the one before.

    Args:
        device: ``torch.cuda`` or ``torch.npu``.
        graph_type: its graph class, ``CUDAGraph`` or ``NPUGraph``.
    """

    def __init__(self, device: Any, graph_type: Callable[[], Any]) -> None:
        self._device, self._graph_type = device, graph_type
        self.pool = device.graph_pool_handle()
        self._stream = device.Stream()

    def capture(self, call: Call) -> AcceleratorGraph:
        """Record ``call`` on a stream of its own, after everything that was launched before."""
        self._device.synchronize()
        graph = self._graph_type()
        with CAPTURING, self._device.graph(graph, pool=self.pool, stream=self._stream):
            output = call()
        return AcceleratorGraph(graph, output)


def device_graphs(device: torch.device) -> DeviceGraphs:
    """The graphs of a device. Raises ``ConfigError`` for one whose graphs are unknown."""
    known = DEVICES.get(device.type)
    if known is None:
        raise ConfigError(
            f"no device graphs for {device.type!r}: known are those of {', '.join(sorted(DEVICES))}. Pass "
            "`graphs`, an object with a `capture(call)` method that returns one with `replay()`"
        )
    if known.graph_class is None:
        return CallableGraphs()
    module = getattr(torch, known.name)
    return AcceleratorGraphs(module, getattr(module, known.graph_class))
