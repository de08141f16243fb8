"""How a checkpoint stores a weight that the model was built without: bits, scales, and what stays together.

A model on ``meta`` is built in its compute type; this says what each projection takes as it is stored.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from oproj_pass.explanation.report import ExplainReport, ProjectionRow

_PACKED_WORD = 8
"""Features of int4 in an int32: they are not parted, whatever shares a scale."""


@dataclass(frozen=True)
class StoredWeight:
    """One way to store a weight [H, K].

    ``group``: features along K that share a scale, None where a whole row or the whole weight does (such
    scales stay on every rank). ``rows``: rows of a block that shares one. ``scale_itemsize`` and
    ``zero_bits``: of a group's scale in bytes, and of its zero point in bits.
    """

    name: str
    dtype: str
    bits: int
    group: int | None = None
    rows: int = 1
    scale_itemsize: int = 0
    zero_bits: int = 0

    @property
    def unit(self) -> int:
        """Features of K that are not parted."""
        return self.group or (_PACKED_WORD if self.bits < 8 else 1)

    def nbytes(self, out_features: int, in_features: int) -> int:
        """Bytes of what is cut along K: the weight, and the scales and zero points of its groups."""
        elements = out_features * in_features * self.bits // 8
        if self.group is None:
            return elements
        groups = math.ceil(out_features / self.rows) * math.ceil(in_features / self.group)
        return elements + groups * self.scale_itemsize + groups * self.zero_bits // 8

    def __str__(self) -> str:
        """``fp8 in blocks of 128 x 128``, ``int4 in groups of 128``."""
        if self.group is None:
            return self.name
        blocks = f"blocks of {self.rows} x {self.group}" if self.rows > 1 else f"groups of {self.group}"
        return f"{self.name} in {blocks}"


StoredAs = Callable[[str], StoredWeight | None]
"""How the weight of a module path is stored; None in the type that the model computes in."""


def as_stored(report: ExplainReport, stored_as: StoredAs) -> ExplainReport:
    """The report of the same model with its output projections as they are stored; other roles stay."""
    return replace(report, projections=tuple(_row(row, stored_as(row.path)) for row in report.projections))


def _row(row: ProjectionRow, stored: StoredWeight | None) -> ProjectionRow:
    if stored is None or row.role != "oproj":
        return row
    return replace(
        row,
        dtype=stored.dtype,
        scheme=stored.name,
        nbytes=stored.nbytes(row.out_features, row.in_features),
        unit=stored.unit,
    )
