"""A place where Dynamo left the graph."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GraphBreak:
    """Where Dynamo left the graph, and why; ``source`` is ``file:line``, empty when it is not known."""

    reason: str
    source: str
