"""The knobs of `finegrained_tp_config`: which sizes there are, and which need steps of equal length.

Decides names only. What a size requires is for the rules.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

__all__ = ["BUILT", "DRAFTS_WITHOUT_HEAD", "UNIFORM_STEPS", "Knob", "assigned", "listed"]


class Knob(str, enum.Enum):
    """One size of vllm-ascend's `finegrained_tp_config`; equal to its key.

    Attributes:
        shards: what it shards, in words.
    """

    shards: str

    OPROJ = "oproj_tensor_parallel_size", "attention's output projection"
    LMHEAD = "lmhead_tensor_parallel_size", "the LM head"
    EMBEDDING = "embedding_tensor_parallel_size", "the token embedding"
    MLP = "mlp_tensor_parallel_size", "the MLP"
    OLORA = "olora_tensor_parallel_size", "the low-rank output projection"

    def __new__(cls, key: str, shards: str) -> Knob:
        """A member that is its key."""
        knob = str.__new__(cls, key)
        knob._value_ = key
        knob.shards = shards
        return knob

    def __str__(self) -> str:
        return str(self.value)


BUILT = frozenset(Knob) - {Knob.OLORA}
"""The knobs that something in this project acts upon."""

UNIFORM_STEPS = (Knob.OPROJ, Knob.MLP, Knob.EMBEDDING)
"""The knobs whose exchange is as long as the step, so that all ranks must bring the same number of tokens.

The LM head runs on sampled rows and exchanges a fixed capacity, whatever the step brings.
"""

DRAFTS_WITHOUT_HEAD = ("ngram", "ngram_gpu", "suffix")
"""vLLM's methods of speculation whose drafts come from the requests' own tokens."""


def assigned(sizes: Mapping[Knob, int]) -> str:
    """`sizes` in words, such as `oproj_tensor_parallel_size=8 and mlp_tensor_parallel_size=4`."""
    return " and ".join(f"{knob}={size}" for knob, size in sizes.items())


def listed(knobs: Iterable[Knob]) -> str:
    """`knobs` in words, without their sizes."""
    return " and ".join(map(str, knobs))
