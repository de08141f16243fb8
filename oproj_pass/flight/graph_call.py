"""How far a rank has come in a compiled graph's call: which of the graph's collectives it has begun.

Process groups count what is begun on them. A call only notes where their counts stand, in microseconds; what
that means in the graph's order is worked out when a record is written.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch.distributed import ProcessGroup, distributed_c10d

COUNTING = ("gloo", "nccl")
"""Backends known to count each collective once, when it begins; of others it is an error to ask."""


@dataclass(frozen=True, slots=True)
class GraphCall:
    """One call of a graph.

    ``collectives``: the graph's, in its order and in words; ``groups``: what they run on; ``before``: how
    many had begun on these when the call began.
    """

    collectives: Sequence[str]
    groups: Sequence[ref[ProcessGroup]]
    before: int

    @classmethod
    def begin(cls, collectives: Sequence[str], groups: Sequence[ProcessGroup]) -> "GraphCall | None":
        """The call that begins now; None if a group does not count. Keeps no group alive."""
        if not all(map(_counts, groups)):
            return None
        return cls(collectives, tuple(map(ref, groups)), _num_begun(groups))

    def as_json(self) -> dict[str, Any] | None:
        """The graph's collectives, how many have begun, and how many had before; None if a group is gone."""
        groups = [group for known in self.groups if (group := known()) is not None and _counts(group)]
        if len(groups) < len(self.groups):
            return None
        begun = _num_begun(groups) - self.before
        return {"begun": begun, "before": self.before, "collectives": list(self.collectives)}


def _counts(group: ProcessGroup) -> bool:
    known = distributed_c10d._world.pg_map
    return group in known and known[group][0] in COUNTING


def _num_begun(groups: Iterable[ProcessGroup]) -> int:
    return sum(group._get_sequence_number_for_group() for group in groups)  # type: ignore[attr-defined]
