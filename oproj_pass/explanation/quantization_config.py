"""Reads how a checkpoint's weights are stored from the ``quantization_config`` of its config.json.

One function a ``quant_method``; one that is not in the table is refused: a guess would be a wrong number.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from oproj_pass.errors import ConfigError
from oproj_pass.explanation.stored import StoredWeight

__all__ = ["DTYPES", "CheckpointFormat", "checkpoint_format", "float8_weight", "stated_quantization"]

_E4M3 = "float8_e4m3fn"
_EVERY_LINEAR = ("Linear",)

DTYPES: Mapping[str, StoredWeight] = {
    "fp8": StoredWeight("fp8", _E4M3, 8),
    "int8": StoredWeight("int8", "int8", 8),
    "int4": StoredWeight("int4", "int4", 4, group=128, scale_itemsize=2),
}
"""What ``--dtype`` takes beside torch's types: one scale a row for 8 bits, groups of 128 for 4."""


@dataclass(frozen=True)
class CheckpointFormat:
    """``weights``: with the modules they are for, the first that fits counts; ``left``: the others."""

    weights: Sequence[tuple[Sequence[str], StoredWeight]]
    left: Sequence[str] = ()

    def __call__(self, path: str) -> StoredWeight | None:
        """How the weight of a linear module is stored."""
        if _is_named(path, self.left):
            return None
        return next((stored for names, stored in self.weights if _is_named(path, names)), None)

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(str(stored) for _, stored in self.weights))


def stated_quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The ``quantization_config`` of a config.json, of its text model where it has several; empty without."""
    text_config = config.get("text_config") or {}
    return config.get("quantization_config") or text_config.get("quantization_config") or {}


def checkpoint_format(config: Mapping[str, Any]) -> CheckpointFormat | None:
    """The format that a config.json states; None for unquantised weights.

    Raises ``ConfigError`` for a method, or a part of one, whose bytes are not known here.
    """
    given = stated_quantization(config)
    if not given:
        return None
    method = str(given.get("quant_method") or "").lower()
    read = _METHODS.get(method)
    if read is None:
        raise ConfigError(_unknown(f"quant_method = {method!r}", f"known: {', '.join(sorted(_METHODS))}"))
    return read(given)


def _fp8(given: Mapping[str, Any]) -> CheckpointFormat:
    size = given.get("weight_block_size")
    return _everywhere(float8_weight(size) if size else DTYPES["fp8"], given)


def float8_weight(block: Sequence[int]) -> StoredWeight:
    """A float8 weight with a scale for each block of so many rows and features."""
    rows, group = map(int, block)
    return StoredWeight("fp8", _E4M3, 8, group=group, rows=rows, scale_itemsize=4)


def _gptq(given: Mapping[str, Any]) -> CheckpointFormat:
    return _everywhere(_grouped(given, "bits", "group_size", zero=True), given)


def _awq(given: Mapping[str, Any]) -> CheckpointFormat:
    bits, group = (
        ("w_bit" if "w_bit" in given else "bits"),
        ("q_group_size" if "q_group_size" in given else "group_size"),
    )
    return _everywhere(_grouped(given, bits, group, zero=bool(given.get("zero_point", True))), given)


def _grouped(given: Mapping[str, Any], bits: str, group: str, *, zero: bool) -> StoredWeight:
    width, size = int(given[bits]), int(given.get(group) or -1)
    name = f"int{width}"
    if size < 1:
        return StoredWeight(name, name, width)
    return StoredWeight(name, name, width, group=size, scale_itemsize=2, zero_bits=width * zero)


def _bitsandbytes(given: Mapping[str, Any]) -> CheckpointFormat:
    if given.get("load_in_8bit"):
        return _everywhere(StoredWeight("int8", "int8", 8), given)
    kind = str(given.get("bnb_4bit_quant_type", "fp4"))
    return _everywhere(StoredWeight(kind, kind, 4, group=64, scale_itemsize=4), given)


def _mxfp4(given: Mapping[str, Any]) -> CheckpointFormat:
    return _everywhere(StoredWeight("mxfp4", "float4_e2m1fn", 4, group=32, scale_itemsize=1), given)


def _ascend(given: Mapping[str, Any]) -> CheckpointFormat:
    return _everywhere(StoredWeight("w8a8", "int8", 8), given)


_MODELOPT = {
    "FP8": DTYPES["fp8"],
    "FP8_PER_CHANNEL_PER_TOKEN": DTYPES["fp8"],
    "FP8_PB_WO": float8_weight((128, 128)),
    "MXFP8": StoredWeight("mxfp8", _E4M3, 8, group=32, scale_itemsize=1),
    "NVFP4": StoredWeight("nvfp4", "float4_e2m1fn", 4, group=16, scale_itemsize=1),
    "W4A16_AWQ": StoredWeight("int4", "int4", 4, group=128, scale_itemsize=2),
    "W4A8_AWQ": StoredWeight("int4", "int4", 4, group=128, scale_itemsize=2),
    "INT8_SQ": DTYPES["int8"],
    "W8A8_SQ_PER_CHANNEL": DTYPES["int8"],
}


def _modelopt(given: Mapping[str, Any]) -> CheckpointFormat:
    given = given.get("quantization") or given
    algorithm = str(given.get("quant_algo") or "").upper()
    if algorithm not in _MODELOPT:
        raise ConfigError(_unknown(f"quant_algo = {algorithm!r}", f"known: {', '.join(_MODELOPT)}"))
    return _everywhere(_MODELOPT[algorithm], given)


def _compressed_tensors(given: Mapping[str, Any]) -> CheckpointFormat:
    groups = (given.get("config_groups") or {}).values()
    weights = [
        (tuple(group["targets"]), _compressed(group["weights"])) for group in groups if group.get("weights")
    ]
    return CheckpointFormat(weights, tuple(given.get("ignore") or ()))


def _compressed(weights: Mapping[str, Any]) -> StoredWeight:
    bits, strategy = int(weights["num_bits"]), str(weights.get("strategy") or "tensor")
    is_float = weights.get("type") == "float"
    name = f"{'fp' if is_float else 'int'}{bits}"
    dtype = {8: _E4M3, 4: "float4_e2m1fn"}.get(bits, name) if is_float else name
    zero = 0 if weights.get("symmetric", True) else bits
    if strategy in ("tensor", "channel"):
        return StoredWeight(name, dtype, bits)
    if strategy == "block":
        rows, group = map(int, weights["block_structure"])
        return StoredWeight(name, dtype, bits, group=group, rows=rows, scale_itemsize=4)
    if strategy in ("group", "tensor_group"):
        scale = 1 if strategy == "tensor_group" else 2
        return StoredWeight(
            name, dtype, bits, int(weights["group_size"]), scale_itemsize=scale, zero_bits=zero
        )
    raise ConfigError(
        _unknown(f"strategy = {strategy!r}", "known: tensor, channel, group, block, tensor_group")
    )


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], CheckpointFormat]] = {
    "ascend": _ascend,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "fbgemm_fp8": _fp8,
    "fp8": _fp8,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "mxfp4": _mxfp4,
}
_LEFT = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules", "exclude_modules", "ignore")


def _everywhere(stored: StoredWeight, given: Mapping[str, Any]) -> CheckpointFormat:
    left = tuple(name for key in _LEFT for name in given.get(key) or ())
    return CheckpointFormat([(_EVERY_LINEAR, stored)], left)


def _is_named(path: str, names: Iterable[str]) -> bool:
    return any(_names(name, path) for name in names)


def _names(name: str, path: str) -> bool:
    """Whether a module's path is meant: by class, regular expression, glob, or as a part of the path."""
    if name in _EVERY_LINEAR:
        return True
    if name.startswith("re:"):
        return re.match(name.removeprefix("re:"), path) is not None
    return fnmatchcase(path, name) or f".{name}." in f".{path}."


def _unknown(found: str, known: str) -> str:
    return (
        f"quantization_config: {found} is not one whose bytes are known here ({known}). Say how the "
        f"projections are stored: --dtype {', '.join(DTYPES)} or the type of unquantised ones."
    )
