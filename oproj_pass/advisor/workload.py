"""What a strategy makes of one site's work in a step: the products, the collectives, the small kernels.

One row of ``EXCHANGES`` a strategy of `passes/strategies`; this file knows bytes and shapes, no times.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from oproj_pass.advisor.collectives import Transfer
from oproj_pass.advisor.gemms import Product

__all__ = ["EXCHANGES", "Shape", "Strategy", "Work", "kind_of", "unsharded"]


@dataclass(frozen=True)
class Shape:
    """A site as the time model sees it: ``y [T, H] = x [T, K] @ weight`` and how many of them run in a step.

    H ``out_features``, K ``in_features``. ``first_products``: for an MLP, its products in front of this one,
    whose H and K are exchanged (gate and up: 2). ``weight_itemsize``: bytes a weight, scales included.
    ``input_itemsize``, ``partial_itemsize``: bytes of a feature that is sent and of a partial sum.
    """

    role: str
    out_features: int
    in_features: int
    weight_itemsize: float
    input_itemsize: int
    partial_itemsize: int
    kind: str = "16bit"
    first_products: int = 0
    count: int = 1


@dataclass(frozen=True)
class Work:
    """Of one site: its products, its collectives in order, and what small kernels copy or add."""

    products: tuple[Product, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    kernels: int = 0
    copied_nbytes: int = 0

    @property
    def sent_nbytes(self) -> int:
        """Bytes that leave a rank."""
        return sum(transfer.sent_nbytes for transfer in self.transfers)


@dataclass(frozen=True)
class Strategy:
    """A strategy of one role: how it is called, and the work of a site over N ranks and T tokens a rank.

    ``needs``: whether a shape can be cut over N ranks. ``options``: those of the backend that
    ask for it, besides the size.
    """

    name: str
    role: str
    options: Mapping[str, str]
    work: Callable[[Shape, int, int], Work]
    needs: Callable[[Shape, int], bool]


def kind_of(itemsize: int) -> str:
    """The kind of products whose factors take so many bytes a number, as the tables of times call it."""
    return {1: "8bit", 2: "16bit"}.get(itemsize, "32bit")


def unsharded(shape: Shape, tokens: int) -> Work:
    """The work where every rank holds the whole weight."""
    return Work(_products(shape, tokens, shape.out_features, shape.in_features))


def _row(shape: Shape, tokens: int, size: int) -> Work:
    scattered = tokens * shape.in_features * shape.input_itemsize
    return Work(
        _products(shape, tokens * size, shape.out_features, shape.in_features // size, partial=True),
        (
            Transfer("all_to_all", size, scattered),
            Transfer("reduce_scatter", size, _sums(shape, tokens, size)),
        ),
        kernels=1,
        copied_nbytes=2 * scattered,
    )


def _row_all_to_all(shape: Shape, tokens: int, size: int) -> Work:
    row, sums = _row(shape, tokens, size), _sums(shape, tokens, size)
    scatter, _ = row.transfers
    return replace(
        row,
        transfers=(scatter, Transfer("all_to_all", size, sums)),
        kernels=row.kernels + 1,
        copied_nbytes=row.copied_nbytes + sums + sums // size,
    )


def _column(shape: Shape, tokens: int, size: int) -> Work:
    results = tokens * shape.out_features * shape.partial_itemsize
    return Work(
        _products(shape, tokens * size, -(-shape.out_features // size), shape.in_features),
        (
            Transfer("all_gather", size, tokens * size * shape.in_features * shape.input_itemsize),
            Transfer("all_to_all", size, results),
        ),
        kernels=1,
        copied_nbytes=2 * results,
    )


def _grid(rows: int) -> Callable[[Shape, int, int], Work]:
    """K over ``rows`` ranks, H over the others."""

    def work(shape: Shape, tokens: int, size: int) -> Work:
        columns = size // rows
        scattered = tokens * shape.in_features * shape.input_itemsize
        results = tokens * shape.out_features * shape.partial_itemsize
        part = shape.out_features // columns
        return Work(
            _products(shape, tokens * size, part, shape.in_features // rows, partial=True),
            (
                Transfer("all_to_all", rows, scattered),
                Transfer("all_gather", columns, scattered * columns),
                Transfer("reduce_scatter", rows, tokens * size * part * shape.partial_itemsize),
                Transfer("all_to_all", columns, results),
            ),
            kernels=2,
            copied_nbytes=2 * (scattered + results),
        )

    return work


def _column_row(shape: Shape, tokens: int, size: int) -> Work:
    rows = tokens * size * shape.out_features * shape.input_itemsize
    return Work(
        _products(shape, tokens * size, shape.out_features, shape.in_features // size, partial=True),
        (Transfer("all_gather", size, rows), Transfer("reduce_scatter", size, _sums(shape, tokens, size))),
    )


def _vocabulary(shape: Shape, tokens: int, size: int) -> Work:
    ids = tokens * size * 8
    sums = _sums(shape, tokens, size)
    transfers = Transfer("all_gather", size, ids), Transfer("reduce_scatter", size, sums)
    return Work((), transfers, kernels=2, copied_nbytes=2 * sums)


def _sums(shape: Shape, tokens: int, size: int) -> int:
    return tokens * size * shape.out_features * shape.partial_itemsize


def _products(
    shape: Shape, rows: int, out_features: int, in_features: int, *, partial: bool = False
) -> tuple[Product, ...]:
    if shape.role == "embedding":
        return ()
    result = shape.partial_itemsize if partial else min(shape.partial_itemsize, 2)
    last = Product(
        rows, out_features, in_features, shape.weight_itemsize, shape.input_itemsize, result, shape.kind
    )
    first = replace(last, n=in_features * shape.first_products, k=out_features)
    return (first, last) if shape.first_products else (last,)


def _divides_k(shape: Shape, size: int) -> bool:
    return shape.in_features % size == 0


def _divides_h(shape: Shape, size: int) -> bool:
    return shape.out_features % size == 0


def _always(shape: Shape, size: int) -> bool:
    return True


def _divides_grid(rows: int) -> Callable[[Shape, int], bool]:
    def needs(shape: Shape, size: int) -> bool:
        if size % rows or size // rows < 2:
            return False
        return shape.in_features % rows == 0 and shape.out_features % (size // rows) == 0

    return needs


_GRID = {"strategy": "grid", "reduce": "scatter"}
_TABLE = (
    Strategy("row", "oproj", {"strategy": "row", "reduce": "scatter"}, _row, _divides_k),
    Strategy(
        "row, exchange", "oproj", {"strategy": "row", "reduce": "exchange"}, _row_all_to_all, _divides_k
    ),
    Strategy("column", "oproj", {"strategy": "column"}, _column, _divides_h),
    Strategy("grid, K over 2", "oproj", _GRID, _grid(2), _divides_grid(2)),
    Strategy("grid, K over 4", "oproj", _GRID, _grid(4), _divides_grid(4)),
    Strategy("column", "lmhead", {}, _column, _always),
    Strategy("column_row", "mlp", {}, _column_row, _divides_k),
    Strategy("vocabulary", "embedding", {}, _vocabulary, _always),
)

EXCHANGES: Mapping[str, tuple[Strategy, ...]] = {
    role: tuple(strategy for strategy in _TABLE if strategy.role == role)
    for role in dict.fromkeys(strategy.role for strategy in _TABLE)
}
"""The strategies of each role, the default first."""
