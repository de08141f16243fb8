"""What `explain` found: every site with its bytes, or why it is left alone.

Holds facts and derives sums from them; how they look is `render`'s, and `report` has both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from oproj_pass.automatic_sizes import AUTO_SIZES
from oproj_pass.explanation.by_role import RoleTotal, by_role
from oproj_pass.explanation.row import ProjectionRow
from oproj_pass.explanation.traffic import COMMUNICATION_BUFFER_NBYTES
from oproj_pass.passes import NearMiss
from oproj_pass.tracing.graph_break import GraphBreak

_LARGEST_LISTED_SIZE = 64


@dataclass(frozen=True, repr=False)
class Explained:
    """The facts of an explanation, and sums of them (see ``ExplainReport``)."""

    model: str
    oproj_tensor_parallel_size: int | Literal["auto"]
    projections: tuple[ProjectionRow, ...]
    near_misses: tuple[NearMiss, ...]
    graph_breaks: tuple[GraphBreak, ...]
    num_graphs: int
    role_sizes: Mapping[str, int | Literal["auto"]] = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The N that the report shows: those that are configured, else 2, 4 and 8."""
        configured = {self.oproj_tensor_parallel_size, *self.role_sizes.values()}
        above_one = [size for size in configured if isinstance(size, int) and size > 1]
        return tuple(sorted(above_one or AUTO_SIZES))

    @property
    def fitting_sizes(self) -> tuple[int, ...]:
        """Every N above 1 over which every projection can be split, up to 64."""
        return tuple(n for n in range(2, _LARGEST_LISTED_SIZE + 1) if self.fits(n))

    def fits(self, size: int) -> bool:
        """Whether every projection can be split over ``size`` ranks; the backend refuses it otherwise."""
        return bool(self.projections) and not self.misfits(size)

    def misfits(self, size: int) -> list[ProjectionRow]:
        """The projections that ``size`` ranks cannot split."""
        return [row for row in self.projections if not row.fits(size)]

    @property
    def full_nbytes(self) -> int:
        """Bytes of all projections' weights on a rank that shards nothing."""
        return sum(row.nbytes for row in self.projections if row.shares_weight_with is None)

    def saved_nbytes(self, size: int) -> int:
        """Bytes of weights freed on each of ``size`` ranks."""
        return sum(row.saved_nbytes(size) for row in self.projections)

    def net_saved_nbytes(self, size: int) -> int:
        """``saved_nbytes`` less the fixed communication buffers (0.42 GiB); negative below the break-even."""
        return self.saved_nbytes(size) - COMMUNICATION_BUFFER_NBYTES

    def sent_nbytes(self, size: int) -> int:
        """Bytes that a rank sends for one of its tokens in a step, over all projections."""
        return sum(row.sent_nbytes(size) for row in self.projections)

    def by_role(self) -> tuple[RoleTotal, ...]:
        """What was found, role by role."""
        configured = {"oproj": self.oproj_tensor_parallel_size, **self.role_sizes}
        return by_role(self.projections, self.near_misses, configured)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready values; sizes are keys of ``"sizes"``, bytes are integers."""
        return {
            "model": self.model,
            "oproj_tensor_parallel_size": self.oproj_tensor_parallel_size,
            "role_sizes": dict(self.role_sizes),
            "num_graphs": self.num_graphs,
            "fitting_sizes": list(self.fitting_sizes),
            "full_nbytes": self.full_nbytes,
            "sizes": {str(size): self._totals(size) for size in self.sizes},
            "roles": {total.role: asdict(total) for total in self.by_role()},
            "projections": [self._row(row) for row in self.projections],
            "near_misses": [asdict(miss) for miss in self.near_misses],
            "graph_breaks": [asdict(break_) for break_ in self.graph_breaks],
        }

    def _totals(self, size: int) -> dict[str, Any]:
        if not self.fits(size):
            return {"fits": False}
        return {
            "fits": True,
            "saved_nbytes": self.saved_nbytes(size),
            "net_saved_nbytes": self.net_saved_nbytes(size),
            "sent_nbytes_per_token": self.sent_nbytes(size),
        }

    def _row(self, row: ProjectionRow) -> dict[str, Any]:
        return asdict(row) | {
            "saved_nbytes": _by_size(self.sizes, row, row.saved_nbytes),
            "sent_nbytes_per_token": _by_size(self.sizes, row, row.sent_nbytes),
        }


def _by_size(sizes: Sequence[int], row: ProjectionRow, nbytes: Any) -> dict[str, int]:
    return {str(size): nbytes(size) for size in sizes if row.fits(size)}
