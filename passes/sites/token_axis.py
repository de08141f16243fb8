"""Tells whether a softmax weighs tokens, or what one token is made of: layers, residual streams, heads.

Attention sums its values over the axis of the keys' tokens. That axis is followed back to where it was made:

1. By ``stack``, or ``cat`` of tensors that were given an axis for it: it counts those tensors.
2. By ``expand`` or ``repeat`` of one: it counts copies.
3. By taking the features of a GEMM's result apart: it counts heads, channels or streams.

Anything else is taken for tokens: a graph input, a cache, whatever no rule foresees.
"""

from collections.abc import Iterator, Mapping

from torch.fx import Node

from oproj_pass.passes.graph import ops
from oproj_pass.passes.sites.axis_steps import Axis, axis_of, einsum_terms, step_back


class TokenAxes:
    """Judges the attentions of one graph, and remembers which axes were found to be tokens'."""

    def __init__(self) -> None:
        self._tokens: set[Axis] = set()

    def refusal_of(self, attention: Node, values: Node) -> str | None:
        """Why a softmax-weighted sum of ``values`` is no attention over tokens; None if it may be one."""
        origins = [self._origin(axis) for axis in _summed(attention, values)]
        known = [origin for origin in origins if origin is not None]
        if not known or len(known) < len(origins):
            return None
        return f"follows a softmax over {known[0]}: no attention over tokens"

    def _origin(self, axis: Axis) -> str | None:
        """What made the axis, by all ways that lead back; None as soon as one ends at what may be tokens."""
        readers: dict[Axis, Axis | None] = {axis: None}
        pending, origin = [axis], None
        while pending:
            axis = pending.pop()
            came_from = () if axis in self._tokens else step_back(axis)
            if isinstance(came_from, str):
                origin = came_from
            elif not came_from:
                self._remember(axis, readers)
                return None
            else:
                new = [source for source in came_from if source not in readers]
                readers.update(dict.fromkeys(new, axis))
                pending += new
        return origin

    def _remember(self, axis: Axis | None, readers: Mapping[Axis, Axis | None]) -> None:
        while axis is not None:
            self._tokens.add(axis)
            axis = readers[axis]


def _summed(product: Node, values: Node) -> Iterator[Axis]:
    """The axes of ``values`` that a product, or an attention operator, sums over."""
    operation = ops.operation(product)
    if operation in ops.EINSUM:
        terms, output = einsum_terms(product)
        others = {letter for node, letters in terms if node is not values for letter in letters}
        letters = next(letters for node, letters in terms if node is values)
        dims = [dim for dim, letter in enumerate(letters) if letter in others and letter not in output]
    elif operation in ops.ATTENTION:
        dims = [-2]
    else:
        last = [source for source in product.args if isinstance(source, Node)][-1]
        dims = [-2 if values is last else -1]
    yield from (axis for dim in dims if (axis := axis_of(values, dim)) is not None)
