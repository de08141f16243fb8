"""Bytes that a rank sends for each of its tokens, of a weight cut in a parts along K and b along H.

One formula for every strategy, a ring sending as much as a mesh: to each of the other N - 1 ranks a token's
features of their part of K; to the a - 1 that add up with me their tokens' partial sums; to the b - 1 that
hold the rest of H their tokens' results. Loads no torch: a report counts bytes without a graph.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenSizes:
    """What a token brings to one site: K and H, bytes of one feature, partial sum and result.

    ``scale_nbytes``: of its scales that lie along K; ``row_scale_nbytes``: of those of the whole row.
    """

    in_features: int
    out_features: int
    input_itemsize: int
    sum_itemsize: int
    product_itemsize: int
    scale_nbytes: int = 0
    row_scale_nbytes: int = 0


def sent_nbytes(token: TokenSizes, a: int, b: int) -> int:
    """The bytes for a split of K in ``a`` and H in ``b`` parts over N = a * b ranks."""
    others = a * b - 1
    features = others * (token.in_features * token.input_itemsize + token.scale_nbytes) // a
    sums = (a - 1) * token.out_features * token.sum_itemsize
    results = (b - 1) * token.out_features // b * token.product_itemsize
    return features + others * token.row_scale_nbytes + sums + results


def whole_rows_nbytes(token: TokenSizes, size: int) -> int:
    """The bytes where a site's input goes to every rank whole, and its result is a sum over all of them."""
    features = token.in_features * token.input_itemsize + token.scale_nbytes + token.row_scale_nbytes
    return (size - 1) * (features + token.out_features * token.sum_itemsize)


def splits(size: int) -> list[tuple[int, int]]:
    """Every split of ``size`` ranks in two dimensions of more than one, few parts of H first."""
    return [(size // b, b) for b in range(2, size) if size % b == 0]


def best_split(token: TokenSizes, size: int) -> tuple[int, int]:
    """The split (a, b) of ``size`` ranks that sends the fewest bytes; raises ``ValueError`` for a prime."""
    return min(splits(size), key=lambda split: sent_nbytes(token, *split))
