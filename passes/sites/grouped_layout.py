"""Where the product of groups lies as rows [.., G x r]: group by group, the rows in the order of the input's.

Follows the product through what lays it out anew. A dimension of it is a run of pieces of the product's own
dimensions, the slowest first; a view joins runs and takes them apart, everything else moves them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from torch import SymInt
from torch.fx import Node

from oproj_pass.passes.gemm.following_rules import inputs_of
from oproj_pass.passes.gemm.following_step import Step
from oproj_pass.passes.gemm.grouped import GroupedProduct
from oproj_pass.passes.gemm.literals import UNFLATTEN, VIEW
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.effects import is_mere_check
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.sites.inner_state import NotElementwise

if TYPE_CHECKING:
    import sympy

_RELAID = VIEW | UNFLATTEN | ops.targets("flatten", "squeeze", "unsqueeze")
_SAME = ops.CAST | ops.COPY
_GROUP, _FEATURE = (-2,), (-1,)


@dataclass(frozen=True)
class _Piece:
    """A piece of ``size`` of a dimension; ``place`` orders the pieces of all rows."""

    place: tuple[int, ...]
    size: "sympy.Expr"

    def apart(self, inner: "sympy.Expr") -> tuple["_Piece", "_Piece"] | None:
        """It as an outer and an inner piece; None where it does not fall into whole ones."""
        outer = self.size / inner
        if not outer.is_integer:
            return None
        return _Piece((*self.place, 0), outer), _Piece((*self.place, 1), inner)


_Dimensions = list[list[_Piece]]


def joined_rows(product: GroupedProduct, reached: Collection[Node]) -> Node:
    """The node that holds the product as rows [.., G x r]; ``NotElementwise`` where there is none.

    ``reached``: what depends on the product, up to the next GEMM.
    """
    node, dimensions = product.node, _dimensions(product)
    while True:
        (node,) = _readers(node, reached)
        dimensions = _relaid(node, dimensions)
        *rows, last = dimensions
        if [piece.place for piece in last] == [_GROUP, _FEATURE]:
            places = [piece.place for run in rows for piece in run]
            if places != sorted(places):
                raise _moved(node)
            _require_one_unknown(node)
            return node


def _readers(node: Node, reached: Collection[Node]) -> list[Node]:
    readers = [user for user in node.users if not is_mere_check(user)]
    strangers = [user for user in readers if user not in reached]
    if strangers or len(readers) != 1:
        reader = [*strangers, *readers[1:]]
        also = f"`{reader[0].name}`" if reader else "nothing"
        raise NotElementwise(f"has an intermediate result that is also read by {also} (`{node.name}`)")
    return readers


def _dimensions(product: GroupedProduct) -> _Dimensions:
    """The product's own dimensions; rows are placed by their number in the input."""
    places = {product.group: _GROUP, product.produced: _FEATURE}
    places |= {letter: (number,) for number, letter in enumerate(product.rows)}
    sizes = map(_expression, value_of(product.node).shape)
    named = zip(product.output_letters, sizes, strict=True)
    return [_run([_Piece(places[letter], size)]) for letter, size in named]


def _relaid(node: Node, dimensions: _Dimensions) -> _Dimensions:
    """The dimensions behind a node that lays them out anew."""
    operation = ops.operation(node)
    if operation in ops.TRANSPOSE or node.target is getattr:
        sources = (inputs_of(Step(node, dim, Fraction(1))).steps[0] for dim in range(len(dimensions)))
        return [dimensions[step.dim] for step in sources]
    if operation in _SAME:
        return dimensions
    viewed = _viewed(dimensions, [*map(_expression, value_of(node).shape)]) if operation in _RELAID else None
    if viewed is None:
        raise _moved(node)
    return viewed


def _viewed(dimensions: _Dimensions, sizes: "Sequence[sympy.Expr]") -> _Dimensions | None:
    """The same pieces in order, in dimensions of other sizes; None where a size ends inside of a piece."""
    pieces = [piece for run in dimensions for piece in run]
    viewed: _Dimensions = []
    for size in reversed(sizes):
        run: list[_Piece] = []
        left = size
        while left != 1:
            if not pieces:
                return None
            piece = pieces.pop()
            if not (left / piece.size).is_integer:
                apart = piece.apart(left)
                if apart is None:
                    return None
                outer, piece = apart
                pieces.append(outer)
            run.insert(0, piece)
            left = left / piece.size
        viewed.insert(0, run)
    return None if pieces else viewed


def _run(pieces: list[_Piece]) -> list[_Piece]:
    return [piece for piece in pieces if piece.size != 1]


def _expression(size: Any) -> "sympy.Expr":
    import sympy  # noqa: PLC0415 - half a second to load, and few models have groups

    return size.node.expr if isinstance(size, SymInt) else sympy.Integer(size)


def _moved(node: Node) -> NotElementwise:
    return NotElementwise(f"has `{node.name}` between its groups and their rows")


def _require_one_unknown(node: Node) -> None:
    if sum(isinstance(size, SymInt) for size in value_of(node).shape[:-1]) > 1:
        raise NotElementwise(f"has rows of several symbolic sizes in `{node.name}`")
