"""A site that is one GEMM: an attention output projection, or a language model's head."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import Node

from oproj_pass.passes.gemm.axes import Axis, StoredAxis, TensorAxis
from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.readers import stray_reader


@dataclass(frozen=True)
class Projection:
    """One GEMM that can be shared among ranks: ``y [.., H] = x [.., K] @ weight (+ bias)``.

    ``names``: the paths in the model of the stored tensors behind its placeholders. ``role``: what the weight
    is here for. ``axis``: the one that the role's own strategy cuts.
    """

    path: str
    gemm: Gemm
    names: Mapping[Node, str]
    role: str = "oproj"
    axis: Axis = Axis.K

    @property
    def node(self) -> Node:
        """The GEMM's node."""
        return self.gemm.node

    @property
    def input(self) -> Node:
        """x."""
        return self.gemm.input

    @property
    def stored(self) -> tuple[TensorAxis, ...]:
        """The weight, and scales that lie along its ``axis``."""
        return self.along(self.axis).tensors

    @property
    def constants(self) -> tuple[Node, ...]:
        """The nodes between what is stored and the GEMM."""
        return self.gemm.along(self.axis).constants

    @property
    def readers(self) -> frozenset[Node]:
        """The GEMM's node alone."""
        return frozenset((self.gemm.node,))

    @property
    def weight(self) -> Node:
        """The placeholder of the stored weight."""
        return self.gemm.weight.node

    @property
    def weight_path(self) -> str:
        """The stored weight's path in the model."""
        return self.name_of(self.weight)

    @property
    def scheme(self) -> str:
        """How the weight is stored and multiplied."""
        return self.gemm.scheme

    @property
    def dtype(self) -> torch.dtype:
        """The stored weight's type."""
        return value_of(self.weight).dtype  # type: ignore[no-any-return]

    @property
    def in_features(self) -> int:
        """K."""
        return self.gemm.k.extent

    @property
    def out_features(self) -> int:
        """H."""
        return value_of(self.gemm.node).shape[-1]  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes of the full weight, and of scales that lie along its ``axis``."""
        return self.gemm.along(self.axis).nbytes

    def along(self, axis: Axis) -> StoredAxis:
        """What an axis lies on, by the tensors' paths in the model; ``CannotFollow`` if that is not known."""
        return self.gemm.along(axis).with_paths(self.names)

    def bias_along_output(self) -> StoredAxis | None:
        """H on the bias, if it is stored and nothing but this GEMM reads it; else None."""
        found = self.gemm.bias_along_output()
        if found is None or not all(self._is_stored(tensor.node) for tensor in found.tensors):
            return None
        readers = {self.gemm.node, *found.constants}
        shared = any(stray_reader(tensor.node, readers, found.constants) for tensor in found.tensors)
        return None if shared else found.with_paths(self.names)

    def _is_stored(self, node: Node) -> bool:
        """Whether a placeholder is a stored tensor, as far as the graph names those."""
        return node in self.names if self.names else node.op == "placeholder"

    def name_of(self, tensor: Node) -> str:
        """A stored tensor's path in the model, its placeholder's name where it has none."""
        return self.names.get(tensor, tensor.name)
