"""What a site is: a stored weight in its role, found in a graph, which a strategy can shard."""

from collections.abc import Mapping
from typing import Protocol

from torch.fx import Node

from oproj_pass.passes.gemm.axes import TensorAxis


class Site(Protocol):
    """One place of a graph whose weights can be shared among ranks."""

    @property
    def path(self) -> str:
        """The module that holds it."""

    @property
    def role(self) -> str:
        """What its weights are here for: a key of ``ROLES``."""

    @property
    def scheme(self) -> str:
        """How its weight is stored and multiplied."""

    @property
    def names(self) -> Mapping[Node, str]:
        """The paths in the model of the stored tensors behind placeholders."""

    @property
    def node(self) -> Node:
        """The node whose result a rewrite replaces."""

    @property
    def input(self) -> Node:
        """Features [.., K], or ids: what is exchanged, row by row."""

    @property
    def stored(self) -> tuple[TensorAxis, ...]:
        """What sharding cuts, each tensor once."""

    @property
    def constants(self) -> tuple[Node, ...]:
        """The nodes between those tensors and what multiplies or looks them up."""

    @property
    def readers(self) -> frozenset[Node]:
        """The nodes that multiply those tensors, or look them up."""

    @property
    def nbytes(self) -> int:
        """Bytes of all that is cut, unsharded."""
