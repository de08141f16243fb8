"""Replays recorded configurations on the installed vllm-ascend, and says where it decides otherwise now.

    python -m scripts.vllm_ascend_rules RECORD.json [--write NEW.json]

Its platform and AscendConfig are the real ones; CANN is the stub of tests/ascend, which must be in
``LD_LIBRARY_PATH`` (``make vllm-ascend-rules`` sees to it). Every configuration runs in a process of its own.
"""

import argparse
import dataclasses
import enum
import json
import multiprocessing as mp
import os
import sys
import tempfile
import types
from collections.abc import Iterator
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any
from unittest.mock import patch

from examples.tiny_checkpoint import CONFIGS, write_config

Row = dict[str, Any]

DEFAULTS = {
    "load_format": "dummy", "dtype": "bfloat16", "max_model_len": 256, "max_num_seqs": 16,
    "max_num_batched_tokens": 8192,
}  # fmt: skip
MOE_ONLY = ("decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob")
SECTIONS = ("compilation_config", "parallel_config", "scheduler_config", "cache_config")
# What differs from process to process, or from torch to torch, without anybody's decision.
VOLATILE = (
    "instance_id", "port", "_api", "compilation_config.pass_config", "static_forward", "data_parallel_master",
    "traced_files", "compilation_time",
)  # fmt: skip
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1", "CANN_STUB_SOC": "Ascend910B3", "CANN_STUB_VERSION": "9.1.0",
    "CANN_STUB_DEVICES": "1",
}  # fmt: skip


def replay(arguments: Row, environment: Row) -> Row:
    """What the installed vllm-ascend makes of one configuration; for a process of its own."""
    os.environ.update(environment)
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
    from vllm.platforms import current_platform  # noqa: PLC0415
    from vllm_ascend.ascend_config import get_ascend_config  # noqa: PLC0415

    seen: Row = {}
    platform = type(current_platform)
    hook = platform.check_and_update_config.__func__

    def watched(cls: Any, vllm_config: Any) -> None:
        seen["before"] = _flat(vllm_config)
        hook(cls, vllm_config)
        seen["after"] = _flat(vllm_config)

    try:
        with patch.object(platform, "check_and_update_config", classmethod(watched)):
            config = EngineArgs(**arguments).create_engine_config()
    except BaseException as error:  # which it refuses, and how, is the record
        return {
            "result": "error",
            "type": _kind(error),
            "message": " ".join(str(error).split())[:200],
            "in_platform_hook": "before" in seen and "after" not in seen,
        }
    compilation, sizes = config.compilation_config, get_ascend_config().finegrained_tp_config
    return {
        "result": "accepted",
        "sizes": {
            name.split("_")[0]: size
            for name, size in vars(sizes).items()
            if name.endswith("parallel_size") and size
        },
        "mode": compilation.cudagraph_mode.name,
        "capture": list(compilation.cudagraph_capture_sizes or []),
        "max": compilation.max_cudagraph_capture_size,
        "mutated": _mutations(seen["before"], seen["after"]),
    }


def _kind(error: BaseException) -> str:
    text, name = str(error), type(error).__name__
    for cause, word in (("AssertionError", "assertion_error"), ("ValueError", "value_error")):
        if f"type={word}" in text:
            return f"{name}({cause})"
    return name


def _mutations(before: Row, after: Row) -> Row:
    return {
        name: [before.get(name), value]
        for name, value in after.items()
        if value != before.get(name) and not any(part in name for part in VOLATILE)
    }


def _flat(vllm_config: Any) -> Row:
    found = {}
    for section in SECTIONS:
        part = getattr(vllm_config, section)
        found[f"{section}.class"] = type(part).__name__
        for field in dataclasses.fields(part):
            value = getattr(part, field.name, None)
            if isinstance(value, enum.Enum):
                value = value.name
            if field.name == "splitting_ops" and value:
                value = [f"{len(value)} ops", *value[-2:]]
            if isinstance(value, int | str | float | list | tuple | dict | None):
                found[f"{section}.{field.name}"] = json.loads(json.dumps(value, default=str))
    additional = vllm_config.additional_config or {}
    return found | {f"additional_config.{name}": value for name, value in additional.items()}


def _start() -> None:
    """Import once what every replay needs, in the process that they are forked from."""
    os.environ.update(ENVIRONMENT, VLLM_PLUGINS=",".join(_plugins()))
    for name in ("mooncake", "mooncake.engine"):  # a transfer library of which only the name is imported
        sys.modules[name] = types.ModuleType(name)
    sys.modules["mooncake.engine"].TransferEngine = type("TransferEngine", (), {})  # type: ignore[attr-defined]
    import torch_npu  # noqa: F401, PLC0415
    from vllm.platforms import current_platform  # noqa: PLC0415

    assert current_platform.device_type == "npu", "vllm-ascend is not the platform here"


def _plugins() -> set[str]:
    """vLLM's plugins here, this project's left out: its rules are not vllm-ascend's."""
    groups = ("vllm.platform_plugins", "vllm.general_plugins")
    return {plugin.name for group in groups for plugin in entry_points(group=group)} - {"oproj_pass"}


def _warm_up(models: Path) -> None:
    """Import what a configuration needs, here and once, instead of in each of the processes."""
    from vllm_ascend.ascend_config import clear_ascend_config  # noqa: PLC0415

    for shape in CONFIGS:
        replay({**DEFAULTS, "model": str(models / shape)}, {})
        clear_ascend_config()


def _in_a_process(arguments: Row, environment: Row) -> Row:
    ours, theirs = mp.Pipe()

    def answer() -> None:
        theirs.send(replay(arguments, environment))
        os._exit(0)  # threads that were not forked would be waited for

    process = mp.get_context("fork").Process(target=answer)
    process.start()
    theirs.close()
    try:
        return dict(ours.recv())
    except EOFError:
        return {"result": "crash"}
    finally:
        process.join()


def _rows(record: Row, models: Path) -> Iterator[Row]:
    for row in record["rules"]:
        environment = {"ASCEND_LAUNCH_BLOCKING": "1"} if "ASCEND_LAUNCH_BLOCKING" in row["case"] else {}
        model = {"model": str(models / row["args"]["model"])}
        found = _in_a_process({**DEFAULTS, **row["args"], **model}, environment)
        yield {"case": row["case"], "args": row["args"], **found}


def _write_models(folder: Path) -> None:
    """The mixtures of experts of the examples, and a dense model."""
    for shape in CONFIGS:
        write_config(folder / shape, shape, num_nextn_predict_layers=1)
    dense = write_config(
        folder / "qwen3", "qwen3_moe", architectures=["Qwen3ForCausalLM"], model_type="qwen3"
    )
    config = json.loads((dense / "config.json").read_text())
    kept = {name: value for name, value in config.items() if "expert" not in name and name not in MOE_ONLY}
    (dense / "config.json").write_text(json.dumps(kept))


def differences(old: Row, new: Row) -> Iterator[str]:
    """What is decided otherwise for one configuration, a line each."""
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield f"{new['case']}: {name} was {old.get(name)}, is {new.get(name)}"


def main() -> int:
    """Replay every recorded configuration; 1 if one is decided otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    record = json.loads(arguments.record.read_text())
    _start()
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        _write_models(models)
        _warm_up(models)
        rows = list(_rows(record, models))
    if arguments.write:
        arguments.write.write_text(json.dumps({**record, "rules": rows}) + "\n")
    pairs = zip(record["rules"], rows, strict=True)
    found = [line for old, new in pairs for line in differences(old, new)]
    installed, recorded = version("vllm-ascend"), record["vllm_ascend"]
    print(f"vllm-ascend {installed} against the record of {recorded}: {len(found)} differences")
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
