"""``oproj_pass::pad_rows`` and ``trim_rows``: a fixed capacity, for engines that do not pad their steps.

Ranks of such an engine bring different row counts to one exchange, which no collective survives. At a fixed
capacity every exchange has one shape, whatever each rank brings.
"""

import torch
from torch import Tensor

from oproj_pass.errors import ConfigError


@torch.library.custom_op("oproj_pass::pad_rows", mutates_args=())
def pad_rows(x: Tensor, capacity: int, path: str) -> Tensor:
    """``x`` [.., K] as [capacity, K], the rest zero; ``ConfigError`` if it has more rows."""
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) > capacity:
        raise ConfigError(
            f"{path}: a step brings {len(rows)} rows, capacity = {capacity}. Raise `capacity` to the "
            "engine's largest step (vLLM: max_num_batched_tokens) on all ranks."
        )
    padded = rows.new_zeros(capacity, rows.shape[-1])
    padded[: len(rows)] = rows
    return padded


@pad_rows.register_fake
def _(x: Tensor, capacity: int, path: str) -> Tensor:
    return x.new_empty(capacity, x.shape[-1])


@torch.library.custom_op("oproj_pass::trim_rows", mutates_args=())
def trim_rows(y: Tensor, x: Tensor) -> Tensor:
    """The rows of ``y`` [capacity, H] that stand for those of ``x`` [.., K]: [.., H]."""
    rows = x.numel() // x.shape[-1]
    return y[:rows].reshape(*x.shape[:-1], y.shape[-1]).clone()


@trim_rows.register_fake
def _(y: Tensor, x: Tensor) -> Tensor:
    return y.new_empty(*x.shape[:-1], y.shape[-1])
