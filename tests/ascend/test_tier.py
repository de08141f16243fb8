"""The tier itself: the stub answers for every name, the fake device is as selected, copies are real."""

import ctypes
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.ascend.cann.build import LIBRARY, library_names, needed_symbols, wheel_folder


def device_facts():
    import torch
    import torch_npu

    values = torch.arange(6.0)
    there = values.npu()
    values += 1
    return {
        "available": torch.npu.is_available(),
        "devices": torch.npu.device_count(),
        "soc": torch.npu.get_device_name(),
        "cann_at_least_8.5": torch_npu.npu.utils._is_gte_cann_version("8.5.0"),
        "came_back": there.cpu().tolist(),
        "device": str(there.device),
        "last_device": str(torch.zeros(1, device=f"npu:{torch.npu.device_count() - 1}").device),
    }


def capture_and_replay_twice():
    import torch

    rows = torch.zeros(4).npu()
    graph, side = torch.npu.NPUGraph(), torch.npu.Stream()
    with torch.npu.graph(graph):
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            joined = torch.npu.is_current_stream_capturing()
        torch.npu.current_stream().wait_stream(side)
        rows + 1
    left = torch.npu.is_current_stream_capturing()
    graph.replay()
    graph.replay()
    graph.reset()
    return joined, left


def die_by(number):
    os.kill(os.getpid(), number)


def raise_an_error():
    raise ValueError("wrong on purpose")


def sleep_for(seconds):
    time.sleep(seconds)


@pytest.fixture(scope="module")
def default_device(npu_process):
    return npu_process(device_facts)


@pytest.fixture(scope="module")
def captured(npu_process):
    return npu_process(capture_and_replay_twice)


def test_defines_every_name_the_wheel_needs(cann_stub):
    library = ctypes.CDLL(str(cann_stub / LIBRARY))
    needed = needed_symbols(wheel_folder())
    assert {"aclrtMalloc", "aclnnMatmul", "HcclAllReduce"} <= needed
    assert [name for name in needed if not hasattr(library, name)] == []


def test_stands_in_for_every_library_the_wheel_opens(cann_stub):
    names = library_names(wheel_folder())
    assert {"libascendcl.so", "libhccl.so", "libge_runner.so"} <= names
    assert [name for name in names if not (cann_stub / name).exists()] == []


def test_one_device_by_default(default_device):
    facts = default_device.value
    assert facts["available"]
    assert (facts["devices"], facts["soc"], facts["device"]) == (1, "Ascend910B3", "npu:0")
    assert facts["cann_at_least_8.5"]


def test_copies_are_real_and_independent(default_device):
    assert default_device.value["came_back"] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_devices_soc_and_cann_are_as_selected(npu_process):
    facts = npu_process(device_facts, soc="Ascend950PR_9599", cann="8.2.RC1", devices=4).value
    assert (facts["devices"], facts["soc"], facts["last_device"]) == (4, "Ascend950PR_9599", "npu:3")
    assert not facts["cann_at_least_8.5"]


def test_the_log_tells_captures_and_replays(captured):
    first, *told = [line.split(" ")[0] for line in captured.events]
    assert first == "operation"  # torch_npu's own timeout of operations, set as the device starts
    assert told == ["capture", "record", "wait", "record", "wait", "capture", "replay", "replay", "destroy"]
    assert captured.events[-3:-1] == ["replay model=1 #1", "replay model=1 #2"]


def test_a_stream_joins_a_capture_by_waiting_and_leaves_at_its_end(captured):
    assert captured.value == (True, False)


@pytest.mark.parametrize(
    ("function", "argument", "timeout", "told"),
    [
        (die_by, (signal.SIGSEGV,), 60, "SIGSEGV"),
        (sleep_for, (60,), 1, "no answer within 1 s"),
        (raise_an_error, (), 60, "wrong on purpose"),
    ],
)
def test_fails_with_what_became_of_the_process(npu_process, function, argument, timeout, told):
    with pytest.raises(pytest.fail.Exception, match=told):
        npu_process(function, *argument, timeout=timeout)


@pytest.mark.parametrize(("autoload", "fails"), [("1", True), ("0", False)])
def test_without_cann_torch_imports_only_with_autoload_off(autoload, fails):
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    command = [sys.executable, "-c", "import torch"]
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert (result.returncode != 0) == fails
    assert ("TORCH_DEVICE_BACKEND_AUTOLOAD" in result.stderr) == fails
