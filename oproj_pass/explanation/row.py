"""One site of an explanation, with what it weighs and sends at any N."""

from dataclasses import dataclass
from itertools import chain

from oproj_pass.automatic_sizes import AUTO
from oproj_pass.explanation.traffic import saved_nbytes
from oproj_pass.passes.traffic import TokenSizes, sent_nbytes, splits


@dataclass(frozen=True)
class ProjectionRow:
    """One site that sharding takes: an output projection, or a site of another ``role``.

    ``nbytes``: the full weight [H, K], H ``out_features`` and K ``in_features``, with the scales that are cut
    with it; of an MLP all its weights, H and K being those of its last one, of an embedding the table [V, H].
    ``input_itemsize`` and ``partial_itemsize``: bytes of one feature that is sent to be multiplied, and of
    one partial sum that is reduced; ``product_itemsize``: of one result, if not the same. ``scale_nbytes``
    and ``row_scale_nbytes``: bytes of a token's scales, those that travel with their features and those that
    go to every rank. ``unit``: features that may not be parted, for they share a scale, a packed word or a
    group.
    ``calls``: times a step runs it. ``shares_weight_with``: the site whose weight it uses too. ``strategy``
    and ``grid``: as configured. ``out_parts``: the most ranks that H can be split over, 1 if it cannot be
    followed. A token brings ``brought`` features, K unless given, and gets ``made`` of them, H unless given.
    ``cut``: features along the axis that the one strategy for its kind cuts, K unless given; ``padded``:
    whether that is filled up to fit any size.
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
        if self._has_one_strategy:
            return self.padded or self.parts % size == 0
        return bool(self._splits(size))

    @property
    def _has_one_strategy(self) -> bool:
        """Whether its kind of site is cut in one way: all but output projections."""
        return self.role != "oproj"

    def _splits(self, size: int) -> list[tuple[int, int]]:
        """In how many parts of K and of H the strategy may cut."""
        grids = splits(size) if self.grid is None else [self.grid]
        by_name = {"row": [(size, 1)], "column": [(1, size)], "grid": grids, "group": [(size, 1)]}
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
        if self._has_one_strategy:
            from oproj_pass.passes import STRATEGIES  # noqa: PLC0415 - loads torch

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
