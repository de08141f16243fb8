"""Reads a deployment from a file, a command line or a live VllmConfig, as plain fields.

Decides where each field is found; names and values are checked by the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oproj_pass.deployment.files import SCRIPTS, parse_mapping, read_mapping, text_of
from oproj_pass.deployment.flatten import spelled
from oproj_pass.deployment.hf_config import model_facts
from oproj_pass.deployment.local_model import with_model_facts
from oproj_pass.deployment.serve_command import serve_fields
from oproj_pass.deployment.shell import holds_serve_command, serve_arguments, serve_arguments_of_script
from oproj_pass.errors import ConfigError

__all__ = ["read_command", "read_file", "read_text", "read_vllm_config"]


_MISSING = object()

# sub-config of VllmConfig -> its attribute -> the flat field; (attribute, default) where old releases lack it
_VLLM_FIELDS: dict[str, tuple[tuple[str, str, Any], ...]] = {
    "parallel_config": (
        ("tensor_parallel_size", "tensor_parallel_size", _MISSING),
        ("data_parallel_size", "data_parallel_size", _MISSING),
        ("pipeline_parallel_size", "pipeline_parallel_size", _MISSING),
        ("prefill_context_parallel_size", "prefill_context_parallel_size", 1),
    ),
    "scheduler_config": (
        ("max_num_seqs", "max_num_seqs", _MISSING),
        ("max_num_batched_tokens", "max_num_batched_tokens", _MISSING),
    ),
    "compilation_config": (
        ("cudagraph_mode", "cudagraph_mode", _MISSING),
        ("cudagraph_capture_sizes", "cudagraph_capture_sizes", _MISSING),
        ("max_cudagraph_capture_size", "max_cudagraph_capture_size", None),
        ("mode", "compilation_mode", None),
        ("backend", "compilation_backend", None),
    ),
    "model_config": (("enforce_eager", "enforce_eager", False),),
}


def read_file(path: Path) -> dict[str, Any]:
    """Return the fields of a .json, .yaml or .yml file, or of a script's `vllm serve` (.sh, .bash).

    The facts of a model that is on this machine come with them. The model is `hf_config`, or else `model`: a
    config.json, its folder, or a name in the local Hugging Face cache. What the file states itself wins over
    the config of `model`.

    Raises:
        ConfigError: a file is missing, of another kind, malformed, or not a mapping.
    """
    if path.suffix in SCRIPTS:
        return read_command(
            ["vllm", "serve", *serve_arguments_of_script(text_of(path), str(path))], path.parent
        )
    return with_model_facts(read_mapping(path), path.parent)


def read_text(text: str, source: str) -> dict[str, Any]:
    """Return the fields of a script or a mapping, whichever `text` is; `source` names it in messages."""
    if holds_serve_command(text):
        return read_command(["vllm", "serve", *serve_arguments_of_script(text, source)])
    return with_model_facts(parse_mapping(text, source), Path())


def read_command(words: Sequence[str], folder: Path = Path()) -> dict[str, Any]:
    """Return the fields of a command line; those of the file that its `--config` names stand behind them.

    Raises:
        ConfigError: it does not run `vllm serve`, or an argument cannot be read.
    """
    arguments = serve_arguments(words)
    if arguments is None:
        raise ConfigError(f"{' '.join(words)!r} is no deployment, required: vllm serve MODEL ...")
    fields = serve_fields(arguments)
    config = fields.pop("config", None)
    if config is not None:
        stated = {spelled(name): value for name, value in read_mapping(folder / str(config)).items()}
        fields = stated | fields
    return with_model_facts(fields, folder)


def read_vllm_config(vllm_config: Any) -> dict[str, Any]:
    """Return the fields of a VllmConfig, or of anything shaped like one; reads attributes only.

    Raises:
        ConfigError: a sub-config or an attribute that every VllmConfig has is absent.
    """
    fields: dict[str, Any] = {}
    for section, attributes in _VLLM_FIELDS.items():
        config = _attribute(vllm_config, section)
        for attribute, field, default in attributes:
            fields[field] = _attribute(config, attribute, default, section)
    if fields["cudagraph_capture_sizes"]:
        fields["max_cudagraph_capture_size"] = None  # these sizes are final, and the ceiling is their largest
    speculative = _attribute(vllm_config, "speculative_config", None)
    if speculative is not None:
        fields["num_speculative_tokens"] = _attribute(speculative, "num_speculative_tokens", 0)
        fields["speculative_method"] = _attribute(speculative, "method", None)
    fields |= _kv_transfer_fields(_attribute(vllm_config, "kv_transfer_config", None))
    fields["additional_config"] = _attribute(vllm_config, "additional_config", None)
    fields["device_type"] = _attribute(_attribute(vllm_config, "device_config", None), "device_type", "npu")
    hf_config = _attribute(vllm_config.model_config, "hf_text_config", None)
    return fields | (model_facts(hf_config) if hf_config is not None else {})


def _kv_transfer_fields(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    names = ("kv_connector", "kv_role", "kv_connector_extra_config")
    return {"kv_transfer_config": {name: _attribute(config, name, None) for name in names}}


def _attribute(config: Any, name: str, default: Any = _MISSING, owner: str = "VllmConfig") -> Any:
    value = getattr(config, name, default)
    if value is _MISSING:
        raise ConfigError(f"{owner} has no attribute {name!r}. Pass the whole VllmConfig of the engine.")
    return value
