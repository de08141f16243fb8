"""What a weight has to be, judged by the same code when a graph is compiled and when a call brings it."""

import sys
from typing import Any

import torch
from torch import Tensor

from oproj_pass.errors import ConfigError, WeightReleasedError
from oproj_pass.weights.released import Released
from oproj_pass.weights.shard import Signature
from oproj_pass.weights.storages import holds_values

_FRACTAL_NZ = 29  # ACL_FORMAT_FRACTAL_NZ


def cut_refusal(weight: Tensor) -> str | None:
    """Why no slice can be cut from the weight, None if one can."""
    if is_in_tiles(weight):
        return (
            "has a weight in Ascend's format FRACTAL_NZ, whose tiles are no slices of it: compile before "
            "torch_npu.npu_format_cast"
        )
    return None


def keep_reason(weight: Tensor) -> str | None:
    """Why the weight's storage cannot be emptied, by its own looks; None if it can."""
    if weight.is_meta or weight.untyped_storage().nbytes() <= weight.numel() * weight.element_size():
        return None
    return "has a weight that is a view into a larger storage"


def require_ready(weight: Tensor, path: str) -> None:
    """Raise ``ConfigError`` for a weight without values, or one that is being trained."""
    if weight.is_meta:
        raise ConfigError(
            f"{path}: its weight is on the meta device and has no values to shard. Load the weights "
            "first, or use oproj_pass.explain, which needs none."
        )
    if weight.requires_grad and torch.is_grad_enabled():
        raise ConfigError(
            f"{path}: its weight requires grad and grad mode is on; a sharded weight cannot be trained. "
            "Run the step under torch.inference_mode() or torch.no_grad(), or call "
            "model.requires_grad_(False)."
        )


def require_as_compiled(weight: Tensor, expected: Signature, path: str) -> None:
    """Raise for a weight, released or not, that the compiled graph could not take in place of its own."""
    found = weight.shard.signature if isinstance(weight, Released) else Signature.of(weight)
    if found != expected:
        raise ConfigError(
            f"{path}: a call brings a weight of {found.in_words()}, the graph was compiled for "
            f"{expected.in_words()}. Bring the same kind of weight, or compile the model again."
        )


def require_cuttable(weight: Tensor, path: str) -> None:
    """Raise for an unreleased weight of which no slice can be cut, now that a call brings it."""
    if isinstance(weight, Released):
        return
    require_ready(weight, path)
    if (reason := cut_refusal(weight)) is not None:
        raise ConfigError(f"{path}: a weight that replaced the compiled one cannot be sharded: it {reason}")
    if not holds_values(weight):
        raise WeightReleasedError(
            f"{path}: a call brings a tensor over an empty storage, whose values were released. Bring the "
            "released parameter itself, or a new one with values."
        )


def is_in_tiles(weight: Tensor) -> bool:
    """Whether a cast has laid the weight out in the tiles of Ascend's matrix unit."""
    torch_npu: Any = sys.modules.get("torch_npu")
    if torch_npu is None or weight.device.type != "npu":
        return False
    return bool(torch_npu.get_npu_format(weight) == _FRACTAL_NZ)
