"""Makes `examples.vllm_on_cpu` a plugin of vLLM, for engines whose workers are processes that start anew."""

import os
import sys
from pathlib import Path

_REPOSITORY = str(Path(__file__).parents[3])


def use(folder):
    """Let every vLLM process that this one starts prepare for a CPU; ``folder``: a place for the plugin."""
    installed = Path(folder) / "vllm_on_cpu-0.dist-info"
    installed.mkdir(parents=True, exist_ok=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-on-cpu\nVersion: 0\n")
    entry = "[vllm.general_plugins]\nvllm_on_cpu = examples.vllm_on_cpu:prepare\n"
    (installed / "entry_points.txt").write_text(entry)
    for path in (_REPOSITORY, str(folder)):
        sys.path.insert(0, path)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(folder), _REPOSITORY, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
