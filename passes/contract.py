"""What a pass is: the signature that every pass has, and what it tells of its work.

Imports nothing of the other passes, so that a pass of one's own stands on this file and the runner alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch.fx import GraphModule, Node


@dataclass(frozen=True)
class NearMiss:
    """What a pass looked at and left alone, and why; ``reason`` goes on from the path as one sentence.

    ``role``: what the weight there would be for.
    """

    path: str
    reason: str
    nbytes: int = 0
    left_by_graph_break: bool = False
    role: str = "oproj"


@dataclass(frozen=True)
class PassRecord:
    """What one pass did: its matches (each with a ``path``), near misses, the nodes it made and its time."""

    name: str
    matches: tuple[Any, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    changed: tuple[Node, ...] = ()
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether the graph is as it was before."""
        return not self.changed


class GraphPass(Protocol):
    """The signature every pass has."""

    name: str

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> PassRecord:
        """Rewrite ``gm`` in place and say what was done."""
