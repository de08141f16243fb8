"""What `explain` found: every site with its bytes, or why it is left alone.

Holds facts and derives sums from them; how they look is `render`'s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderResult

from oproj_pass.config import AUTO
from oproj_pass.explanation import render
from oproj_pass.explanation.by_role import by_role
from oproj_pass.explanation.traffic import COMMUNICATION_BUFFER_NBYTES, saved_nbytes
from oproj_pass.groups import AUTO_SIZES
from oproj_pass.passes import STRATEGIES, NearMiss
from oproj_pass.passes.strategies.traffic import TokenSizes, sent_nbytes, splits
from oproj_pass.tracing.graphs import GraphBreak

__all__ = ["ExplainReport", "GraphBreak", "ProjectionRow"]

_LARGEST_LISTED_SIZE = 64


@dataclass(frozen=True)
class ProjectionRow:
    """One site that sharding takes: an output projection, or a site of another ``role``.

    ``nbytes``: the full weight [H, K], H ``out_features`` and K ``in_features``, with the scales that are cut
    with it; of an MLP all its weights, H and K being those of its last one, of an embedding the table [V, H].
    ``input_itemsize`` and ``partial_itemsize``: bytes of one feature that is sent to be multiplied, and of
    one partial sum that is reduced; ``product_itemsize``: of one result, if not the same. ``scale_nbytes``
    and ``row_scale_nbytes``: bytes of a token's scales, those that travel with their features and those that
    go to every rank. ``unit``: features that may not be parted, for they share a scale or a packed word.
    ``calls``: times a step runs it. ``shares_weight_with``: the site whose weight it uses too. ``strategy``
    and ``grid``: as configured. ``out_parts``: the most ranks that H can be split over, 1 if it cannot be
    followed. A token brings ``brought`` features, K unless given, and gets ``made`` of them, H unless given.
    ``cut``: features along the axis that a role's one strategy cuts, K unless given; ``padded``: whether that
    is filled up to fit any size.
    """

    path: str
    gemm: str
    out_features: int
    in_features: int
    dtype: str
    scheme: str
    nbytes: int
    input_itemsize: int
    partial_itemsize: int
    product_itemsize: int | None = None
    scale_nbytes: int = 0
    row_scale_nbytes: int = 0
    unit: int = 1
    calls: int = 1
    shares_weight_with: str | None = None
    strategy: str = "row"
    grid: tuple[int, int] | None = None
    out_parts: int = 1
    role: str = "oproj"
    brought: int | None = None
    made: int | None = None
    cut: int | None = None
    padded: bool = False

    @property
    def cut_features(self) -> int:
        """Features along the axis that is cut."""
        return self.in_features if self.cut is None else self.cut

    @property
    def parts(self) -> int:
        """The most ranks that the axis can be split over unpadded; every divisor of it fits too."""
        return self.cut_features // self.unit if self.cut_features % self.unit == 0 else 1

    def fits(self, size: int) -> bool:
        """Whether the strategy can split the weight over ``size`` ranks."""
        if self.role != "oproj":
            return self.padded or self.parts % size == 0
        return bool(self._splits(size))

    def _splits(self, size: int) -> list[tuple[int, int]]:
        """In how many parts of K and of H the strategy may cut."""
        grids = splits(size) if self.grid is None else [self.grid]
        by_name = {"row": [(size, 1)], "column": [(1, size)], "grid": grids}
        allowed = chain(*by_name.values()) if self.strategy == AUTO else by_name[self.strategy]
        return [
            (a, b) for a, b in allowed if a * b == size and self.parts % a == 0 and self.out_parts % b == 0
        ]

    def saved_nbytes(self, size: int) -> int:
        """Bytes freed on each of ``size`` ranks; 0 where the weight counts elsewhere."""
        if self.shares_weight_with:
            return 0
        if self.padded:
            units = -(-self.cut_features // self.unit)
            return self.nbytes - self.nbytes * -(-units // size) // units
        return saved_nbytes(self.nbytes, size)

    def sent_nbytes(self, size: int) -> int:
        """Bytes that a rank sends for one of its tokens in a step."""
        if self.role != "oproj":
            return self.calls * STRATEGIES[self.strategy].sent_nbytes(self.token, size)
        return self.calls * min(sent_nbytes(self.token, a, b) for a, b in self._splits(size))

    @property
    def token(self) -> TokenSizes:
        """What a token brings."""
        return TokenSizes(
            self.in_features if self.brought is None else self.brought,
            self.out_features if self.made is None else self.made,
            input_itemsize=self.input_itemsize,
            sum_itemsize=self.partial_itemsize,
            product_itemsize=self.product_itemsize or self.partial_itemsize,
            scale_nbytes=self.scale_nbytes,
            row_scale_nbytes=self.row_scale_nbytes,
        )


@dataclass(frozen=True, repr=False)
class ExplainReport:
    """What ``oproj_npu`` would do to one model.

    ``oproj_tensor_parallel_size``: as configured. ``num_graphs``: graphs that Dynamo made of one call.
    ``role_sizes``: the sizes of the roles that were looked for, as configured.
    """

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
            "roles": {total.role: asdict(total) for total in by_role(self)},
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

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.sizes))
        return f"ExplainReport({render.headline(self)}; N = {sizes})"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield render.to_rich(self)

    def _repr_html_(self) -> str:
        return render.to_html(self)


def _by_size(sizes: Sequence[int], row: ProjectionRow, nbytes: Any) -> dict[str, int]:
    return {str(size): nbytes(size) for size in sizes if row.fits(size)}
