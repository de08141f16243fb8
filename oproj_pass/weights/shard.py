"""A rank's part of one weight, and what is known of the full one."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from oproj_pass.errors import ConfigError
from oproj_pass.weights.placement import Placement


@dataclass(eq=False)
class Shard:
    """This rank's slice of one weight, and what is known of the full one.

    ``signature`` is the full weight's shape, strides, type and device; ``storage`` its own storage, empty
    unless someone filled it again. ``role``: what it is here for, joined by "+" where that is more than one.
    ``manners``: how the graphs that read it exchange, by the rows of their step (None: any number).
    """

    path: str
    placement: Placement
    tensor: Tensor
    signature: "Signature"
    storage: torch.UntypedStorage
    role: str = "oproj"
    manners: dict[int | None, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the slice, read from its storage."""
        return self.tensor.untyped_storage().nbytes()

    def write(self, full: Tensor) -> None:
        """Take this rank's slice of new full values, in place: the shard keeps its address."""
        if full.shape != self.signature.shape:
            raise ConfigError(
                f"{self.path}: new values have shape {tuple(full.shape)}, "
                f"the weight has {tuple(self.signature.shape)}"
            )
        self.tensor.copy_(self.placement.part_of(full))

    def describe(self) -> str:
        """The layer, this rank and its slice, for messages."""
        mesh = self.placement.mesh
        slices = " and ".join(f"slice {group.rank + 1} of {group.size}" for group in mesh)
        return f"{self.path} (rank {mesh[0].ranks[mesh[0].rank]}, {slices})"


class Use(NamedTuple):
    """How one graph exchanges what a weight multiplies: the rows of its step (None: any), and in words."""

    rows: int | None
    manner: str


class Signature(NamedTuple):
    """What a compiled graph relies on in a full weight."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, weight: Tensor) -> "Signature":
        """The signature of a full weight."""
        return cls(weight.shape, weight.stride(), weight.dtype, weight.device)

    def in_words(self) -> str:
        """The signature for messages."""
        return f"shape {tuple(self.shape)}, strides {self.stride}, {self.dtype} on {self.device}"
