"""What a pass is: the signature that every pass has, and what it tells of its work.

Imports nothing of the other passes, so that a pass of one's own stands on this file and the runner alone, and
no torch, so that a near miss can be told without.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
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


@dataclass(frozen=True, repr=False)
class PassRecord:
    """What one pass did: its matches (each with a ``path``), near misses, the nodes it made and its time."""

    name: str
    matches: tuple[Any, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    changed: "tuple[Node, ...]" = ()
    seconds: float = 0.0

    def __repr__(self) -> str:
        matches, misses = len(self.matches), len(self.near_misses)
        return (
            f"{type(self).__name__}({self.name}: {matches} match{'es' * (matches != 1)}, {misses} near "
            f"miss{'es' * (misses != 1)}, {len(self.changed)} nodes changed)"
        )

    def _repr_html_(self) -> str:
        rows = [(match.path, "taken") for match in self.matches]
        rows += [(miss.path, miss.reason) for miss in self.near_misses]
        cells = "".join(f"<tr><td>{escape(path)}</td><td>{escape(why)}</td></tr>" for path, why in rows)
        table = f"<table><tr><th>module</th><th>what became of it</th></tr>{cells}</table>" if rows else ""
        return f"<p>{escape(repr(self))}</p>{table}"

    @property
    def is_clean(self) -> bool:
        """Whether the graph is as it was before."""
        return not self.changed


class GraphPass(Protocol):
    """The signature every pass has."""

    name: str

    def __call__(self, gm: "GraphModule", example_inputs: Sequence[Any]) -> PassRecord:
        """Rewrite ``gm`` in place and say what was done."""
