"""What a report's sites come to role by role, each at the size that its own option sets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from oproj_pass.automatic_sizes import AUTO_SIZES
from oproj_pass.explanation.row import ProjectionRow
from oproj_pass.passes import NearMiss
from oproj_pass.passes.sites.options import ROLE_TITLES, of_role


@dataclass(frozen=True)
class RoleTotal:
    """One role: its configured ``size``, its ``sites``, and bytes.

    ``full_nbytes``: of their weights on a rank that shards nothing; a weight of two roles counts for the
    first. ``left_nbytes``: of what is left alone. ``saved_nbytes``: freed on each rank, by number of ranks;
    one that a site does not fit is missing.
    """

    role: str
    size: int | Literal["auto"]
    sites: int
    full_nbytes: int
    left_nbytes: int
    saved_nbytes: dict[int, int]


def by_role(
    projections: Sequence[ProjectionRow],
    near_misses: Sequence[NearMiss],
    configured: Mapping[str, int | Literal["auto"]],
) -> tuple[RoleTotal, ...]:
    """The roles of which anything was found, each at its ``configured`` size."""
    return tuple(_totals(projections, near_misses, configured))


def saved_as_configured(totals: Sequence[RoleTotal]) -> int | None:
    """Bytes freed on each rank by all roles at their own sizes; None where one is open or does not fit."""
    saved = [total.saved_nbytes.get(total.size) for total in totals if isinstance(total.size, int)]
    found = [nbytes for nbytes in saved if nbytes is not None]
    return sum(found) if found and len(found) == len(totals) else None


def _totals(
    projections: Sequence[ProjectionRow],
    near_misses: Sequence[NearMiss],
    configured: Mapping[str, int | Literal["auto"]],
) -> Iterator[RoleTotal]:
    for role in ROLE_TITLES:
        rows, misses = of_role(projections, role), of_role(near_misses, role)
        if not (rows or misses):
            continue
        size = configured.get(role, "auto")
        sizes = (size,) if isinstance(size, int) and size > 1 else tuple(sorted(AUTO_SIZES))
        yield RoleTotal(
            role=role,
            size=size,
            sites=len(rows),
            full_nbytes=sum(row.nbytes for row in rows if row.shares_weight_with is None),
            left_nbytes=sum(miss.nbytes for miss in misses),
            saved_nbytes={
                n: sum(row.saved_nbytes(n) for row in rows) for n in sizes if all(row.fits(n) for row in rows)
            },
        )
