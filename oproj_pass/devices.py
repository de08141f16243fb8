"""The table of devices: what this project has to know of each. One row a device."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """``inner_backend``: the Dynamo backend that compiles for it by default.

    ``graph_class``: its device graph in the module ``torch.<name>``; None where a replay is a call.
    ``timeout_setter``: the function there that bounds an operation on the device, in milliseconds.
    ``collective_timeout_variable``: the environment's bound of a collective on the device, in seconds.
    """

    name: str
    inner_backend: str
    graph_class: str | None = None
    timeout_setter: str | None = None
    collective_timeout_variable: str | None = None


DEVICES = {
    device.name: device
    for device in (
        Device("npu", "npugraph_ex", "NPUGraph", "set_op_timeout_ms", "HCCL_EXEC_TIMEOUT"),
        Device("cuda", "inductor", "CUDAGraph"),
        Device("cpu", "eager"),
    )
}
"""The first of these that a graph has inputs on decides for the graph."""
