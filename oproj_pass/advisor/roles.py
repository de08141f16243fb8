"""What sharding the rest of the family brings: dense MLPs, the LM head, the embedding, each over N ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oproj_pass.advisor.profile import Profile
from oproj_pass.advisor.sites import Scheme
from oproj_pass.advisor.step_time import Step, step_difference
from oproj_pass.advisor.workload import EXCHANGES, Shape, kind_of
from oproj_pass.explanation.report import ProjectionRow

__all__ = ["RoleOption", "role_options"]

_QUANTISED = frozenset({"mlp"})  # heads and embeddings stay as they are in every scheme


@dataclass(frozen=True)
class RoleOption:
    """One role over ``size`` ranks: its sites, the bytes that a rank frees, and the change of a step."""

    role: str
    size: int
    sites: int
    full_nbytes: int
    saved_nbytes: int
    step: Step


def role_options(
    rows: Sequence[ProjectionRow],
    profile: Profile,
    *,
    sizes: Sequence[int],
    tokens: int,
    scheme: Scheme | None,
    framework: str,
) -> Iterator[RoleOption]:
    """Every role but the projections', at every size that fits all of its sites."""
    for role in dict.fromkeys(row.role for row in rows if row.role != "oproj"):
        mine = [row for row in rows if row.role == role]
        stored = scheme if role in _QUANTISED else None
        for size in sizes:
            if all(row.fits(size) for row in mine):
                own = [row for row in mine if row.shares_weight_with is None]
                yield RoleOption(
                    role=role,
                    size=size,
                    sites=len(mine),
                    full_nbytes=sum(_stored(row.nbytes, row, stored) for row in own),
                    saved_nbytes=sum(_stored(row.saved_nbytes(size), row, stored) for row in own),
                    step=step_difference(
                        profile,
                        [_shape(row, stored) for row in mine],
                        EXCHANGES[role][0],
                        size=size,
                        tokens=tokens,
                        framework=framework,
                    ),
                )


def _stored(nbytes: int, row: ProjectionRow, scheme: Scheme | None) -> int:
    """``nbytes`` of a row's weights, stored by ``scheme`` where that is given."""
    return nbytes if scheme is None else int(nbytes * scheme.itemsize / row.input_itemsize)


def _shape(row: ProjectionRow, scheme: Scheme | None) -> Shape:
    is_embedding = row.role == "embedding"
    itemsize = row.input_itemsize if scheme is None else scheme.itemsize
    products = round(row.nbytes / (row.out_features * row.in_features * row.input_itemsize))
    return Shape(
        role=row.role,
        out_features=row.in_features if is_embedding else row.out_features,
        in_features=row.out_features if is_embedding else row.in_features,
        weight_itemsize=itemsize,
        input_itemsize=row.input_itemsize if scheme is None else 1,
        partial_itemsize=row.partial_itemsize,
        kind=kind_of(row.input_itemsize) if scheme is None else scheme.kind,
        first_products=products - 1 if row.role == "mlp" else 0,
        count=row.calls,
    )
