"""How a dimension of a stored tensor falls into parts, one a rank, and how the parts make it whole again.

The one place that knows of parts in several pieces (gate and up in one tensor) and of padding. Every rank's
part has the same shape; of a plain split it is DTensor's ``Shard(dim)``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Along ``dim``.

    ``segments``: equal stretches of the dimension that are cut each by itself; a part is one piece of each,
    in order. ``padded_by``: how many indices stay together where each stretch is filled up with zeros at its
    end until it falls into equal parts; None where it falls into equal parts as it is.
    """

    dim: int
    segments: int = 1
    padded_by: int | None = None

    def part_length(self, extent: int, size: int) -> int:
        """Indices of a rank's part of a dimension of ``extent``, padding among them.

        Raises ``ValueError`` where an unpadded dimension does not fall into ``size`` equal parts.
        """
        return self.segments * self._piece_length(extent, size)

    def pieces(self, extent: int, rank: int, size: int) -> list[tuple[int, int]]:
        """Start and length of each stretch of the full dimension that rank ``rank`` of ``size`` holds.

        A length may be 0: all of a rank's piece can be padding.
        """
        segment, piece = extent // self.segments, self._piece_length(extent, size)
        start = min(rank * piece, segment)
        length = min(piece, segment - start)
        return [(index * segment + start, length) for index in range(self.segments)]

    def part_of(self, full: Tensor, rank: int, size: int) -> Tensor:
        """Rank ``rank``'s part of a full tensor: a view where it is one piece without padding."""
        extent = full.shape[self.dim]
        pieces = [full.detach().narrow(self.dim, *piece) for piece in self.pieces(extent, rank, size)]
        return self.assembled(pieces, extent, size)

    def assembled(self, pieces: Sequence[Tensor], extent: int, size: int) -> Tensor:
        """The part that is made of ``pieces``, as listed by ``pieces``, with its padding."""
        length, first = self._piece_length(extent, size), pieces[0]
        if self.segments == 1 and first.shape[self.dim] == length:
            return first
        shape, order = list(first.shape), first.dim_order()
        shape[self.dim] = self.segments * length
        stored = first.new_zeros([shape[dim] for dim in order])  # a fake tensor, if that is one
        part = stored.permute([order.index(dim) for dim in range(len(order))])
        for index, piece in enumerate(pieces):
            part.narrow(self.dim, index * length, piece.shape[self.dim]).copy_(piece)
        return part

    def stretches(self, part: Tensor, full: Tensor, rank: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Views: each piece of rank ``rank``'s part, without padding, and its place in the full tensor."""
        piece = self._piece_length(full.shape[self.dim], size)
        for index, (start, length) in enumerate(self.pieces(full.shape[self.dim], rank, size)):
            mine = part.narrow(self.dim, index * piece, length)
            yield mine, full.narrow(self.dim, start, length)

    def whole(self, parts: Sequence[Tensor], extent: int) -> Tensor:
        """The full tensor of ``extent`` indices along the dimension, of every rank's part in order."""
        shape = list(parts[0].shape)
        shape[self.dim] = extent
        full = parts[0].new_empty(shape)
        for rank, part in enumerate(parts):
            for mine, place in self.stretches(part, full, rank, len(parts)):
                place.copy_(mine)
        return full

    def _piece_length(self, extent: int, size: int) -> int:
        segment, rest = divmod(extent, self.segments)
        if self.padded_by is not None and not rest:
            return -(-segment // (size * self.padded_by)) * self.padded_by
        if rest or segment % size:
            raise ValueError(f"{extent} indices in {self.segments} segments do not fall into {size} parts")
        return segment // size
