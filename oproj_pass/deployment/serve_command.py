"""Reads the arguments of `vllm serve` as the fields of a deployment.

Decides how an argument is spelled: aliases, dotted sections, flags and lists. Which names and values a
deployment has is the model's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from oproj_pass.errors import ConfigError

__all__ = ["serve_fields"]

_ALIASES = {
    "-O": "optimization_level",
    "-ac": "attention_config",
    "-cc": "compilation_config",
    "-dc": "diffusion_config",
    "-dcp": "decode_context_parallel_size",
    "-dp": "data_parallel_size",
    "-dpa": "data_parallel_address",
    "-dpb": "data_parallel_backend",
    "-dpe": "data_parallel_external_lb",
    "-dph": "data_parallel_hybrid_lb",
    "-dpl": "data_parallel_size_local",
    "-dpm": "data_parallel_multi_port_external_lb",
    "-dpn": "data_parallel_rank",
    "-dpp": "data_parallel_rpc_port",
    "-dpr": "data_parallel_start_rank",
    "-ep": "enable_expert_parallel",
    "-n": "nnodes",
    "-pcp": "prefill_context_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-q": "quantization",
    "-r": "node_rank",
    "-sc": "speculative_config",
    "-tp": "tensor_parallel_size",
}
_LISTS = {"cudagraph_capture_sizes", "served_model_name", "lora_modules"}
_FLAG = re.compile(
    r"(no_|enable_|disable_|async_|skip_|enforce_eager$|headless$|trust_remote_code$|calculate_kv_scales$|"
    r"numa_bind$|data_parallel_(external|hybrid|multi_port_external)_lb$)"
)
_OPTION = re.compile(r"-{1,2}[A-Za-z]")


def serve_fields(arguments: Sequence[str]) -> dict[str, Any]:
    """The fields that follow `vllm serve`; the model may come first.

    Raises:
        ConfigError: a value is given twice (vLLM takes the last and says nothing), or belongs to no option.
    """
    fields: dict[str, Any] = {}
    for name, values in _options(arguments):
        value = [_number(item) for item in values] if name in _LISTS else _value(name, values)
        if value is True and name.startswith("no_"):
            name, value = name.removeprefix("no_"), False
        name, _, inner = name.partition(".")
        if inner:
            section = fields.setdefault(name, {})
            if not isinstance(section, dict) or not _put(section, inner.split("."), value):
                raise ConfigError(f"vllm serve: --{name}.{inner} is given twice. Keep one of the two.")
        elif name in fields:
            option = "the model" if name == "model" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"vllm serve: {option} is given twice: {fields[name]!r} and {value!r}. Keep one of the two."
            )
        else:
            fields[name] = value
    return fields


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option with the values that belong to it; a value before, or after a flag, is the model."""
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not _OPTION.match(argument):
            yield "model", [argument]
            continue
        option, has_value, value = argument.partition("=")
        name = _name(option)
        if re.fullmatch(r"-O\d", option):
            name, has_value, value = "optimization_level", "=", option[2:]
        values = [value] if has_value else []
        takes = 0 if has_value or _FLAG.match(name) else len(rest) if name in _LISTS else 1
        while takes and rest and not _OPTION.match(rest[0]):
            values.append(rest.pop(0))
            takes -= 1
        yield name, values


def _name(option: str) -> str:
    head, dot, inner = option.partition(".")
    return _ALIASES.get(head, head.lstrip("-").replace("-", "_")) + dot + inner


def _value(name: str, values: Sequence[str]) -> Any:
    if not values:
        return True
    (text,) = values
    if text[:1] in "{[" or "." in name:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text  # a section's own error names the place
    return _number(text)


def _number(text: str) -> Any:
    return int(text) if text.isdigit() else text


def _put(section: dict[str, Any], path: Sequence[str], value: Any) -> bool:
    *parents, last = path
    for parent in parents:
        section = section.setdefault(parent, {})
        if not isinstance(section, dict):
            return False
    return section.setdefault(last, value) is value
