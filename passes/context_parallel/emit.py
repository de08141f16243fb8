"""Writes the split, the gathers and the restore into a graph, as plain nodes."""

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cmp_to_key
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from oproj_pass.passes.context_parallel import index
from oproj_pass.passes.context_parallel.rows import Rows, Size
from oproj_pass.passes.context_parallel.trace import RowTrace
from oproj_pass.passes.graph.metadata import inherit_origin
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.graph.symbols import statically_known_true

aten, functional = torch.ops.aten, torch.ops._c10d_functional


@dataclass(frozen=True)
class ContextGroup:
    """The ranks that share a prefill. ``rank``: this process's place among ``size``; ``group_name``: the c10d
    name of their process group."""

    size: int
    rank: int
    group_name: str


@dataclass
class RowWriter:
    """Inserts what moves rows; each value is split and gathered once.

    ``rows``, ``order``: this rank's rows, and where each row is among all ranks'. ``total``, ``local``: rows
    of the sequence and of a rank, as the graph computes them.
    """

    graph: Graph
    trace: RowTrace
    group: ContextGroup
    rows: Node = field(init=False)
    order: Node = field(init=False)
    total: Node | int = field(init=False)
    local: Node | int = field(init=False)
    _splits: dict[tuple[Node, int], Node] = field(default_factory=dict)
    _gathers: dict[Node, Node] = field(default_factory=dict)
    _masks: dict[Any, Node] = field(default_factory=dict)

    def start(self) -> Node:
        """Insert the indices and this rank's rows of the embedding, which all its readers get."""
        ids, embedding, group = self.trace.ids, self.trace.embedding, self.group
        with self._before(embedding.next):
            self.total = self._size(ids, -1, self.trace.total)
            namespace = torch.ops.oproj_pass
            self.rows = self.graph.call_function(
                namespace.context_rows.default, (ids, self.total, group.size, group.rank)
            )
            self.order = self.graph.call_function(
                namespace.context_order.default, (ids, self.total, group.size)
            )
            self.local = self._size(self.rows, 0, index.local_rows(self.trace.total, group.size))
            dim = self.trace.local[embedding].dim
            mine = self.graph.call_function(aten.index_select.default, (embedding, dim, self.rows))
        embedding.replace_all_uses_with(mine, delete_user_cb=lambda user: user is not mine)
        mine.meta = {**embedding.meta}  # its rows as they were followed, until the runner computes them
        self._gathers[mine] = embedding
        return mine

    @contextmanager
    def _before(self, reader: Node) -> Iterator[None]:
        """Insert before ``reader``, for its module's sake."""
        last = reader.prev
        with self.graph.inserting_before(reader):
            yield
        while (last := last.next) is not reader:
            inherit_origin(last, reader)

    def _size(self, node: Node, dim: int, size: Size) -> Node | int:
        return size if isinstance(size, int) else self.graph.call_function(aten.sym_size.int, (node, dim))

    def split(self, whole: Node, dim: int, reader: Node) -> Node:
        """This rank's rows of a whole value."""
        if (whole, dim) not in self._splits:
            with self._before(reader):
                self._splits[whole, dim] = self.graph.call_function(
                    aten.index_select.default, (whole, dim, self.rows)
                )
        return self._splits[whole, dim]

    def whole(self, mine: Node, dim: int, reader: Node) -> Node:
        """All rows of a local value in their order: [.., L, ..] -> [P*L, ..] -> [.., T, ..]."""
        if mine not in self._gathers:
            with self._before(reader):
                self._gathers[mine] = self._gather(mine, dim, _from_outer_to_inner(value_of(mine)))
        return self._gathers[mine]

    def _gather(self, mine: Node, dim: int, in_memory: list[int]) -> Node:
        """Laid out in memory as the value was before its split: a reader may view it, or use its strides."""
        call, group = self.graph.call_function, self.group
        in_front = [dim, *(other for other in in_memory if other != dim)]
        rows = call(aten.contiguous.default, (self._permuted(mine, in_front),))
        rows = call(functional.all_gather_into_tensor.default, (rows, group.size, group.group_name))
        rows = call(functional.wait_tensor.default, (rows,))
        rows = call(aten.index_select.default, (rows, 0, self.order))
        if in_front != in_memory:
            rows = self._permuted(rows, [in_front.index(other) for other in in_memory])
            rows = call(aten.contiguous.default, (rows,))
        return self._permuted(rows, [in_memory.index(other) for other in range(len(in_memory))])

    def _permuted(self, value: Node, dims: list[int]) -> Node:
        if dims == sorted(dims):
            return value
        return self.graph.call_function(aten.permute.default, (value, dims))

    def size(self, outer: Size, reader: Node, *, local: bool) -> Node | int:
        """Rows of a rank, or of the sequence, times the batch entries that are merged into them."""
        rows = self.local if local else self.total
        if statically_known_true(outer == 1):
            return rows
        with self._before(reader):
            entries = self._entries(outer)
            if isinstance(rows, int) and isinstance(entries, int):
                return rows * entries
            return self.graph.call_function(operator.mul, (rows, entries))

    def sizes(self, shape: Node, rows: Rows, reader: Node, *, local: bool) -> list[Node | int]:
        """The sizes that the shape of a local value states, for all rows or for a rank's."""
        value, known = shape.all_input_nodes[0], value_of(shape)
        counted = self.size(rows.outer, reader, local=local)
        with self._before(reader):
            others = [self._size(value, dim, size) for dim, size in enumerate(known) if dim != rows.dim]
        return [*others[: rows.dim], counted, *others[rows.dim :]]

    def _entries(self, outer: Size) -> Node | int:
        if isinstance(outer, int):
            return outer
        shape = value_of(self.trace.ids).shape[:-1]
        sizes = [self._size(self.trace.ids, dim, size) for dim, size in enumerate(shape)]
        entries = sizes[0]
        for size in sizes[1:]:
            entries = self.graph.call_function(operator.mul, (entries, size))
        return entries

    def causal_mask(self, key: Node, num_keys: Size, reader: Node) -> Node:
        """Which of all keys [S] each of this rank's rows may see, by position: [L, S]."""
        call = self.graph.call_function
        is_total = statically_known_true(num_keys == self.trace.total)
        known = self.total if is_total else key
        if known not in self._masks:
            with self._before(reader):
                keys = self.total if is_total else self._size(key, -2, num_keys)
                device = value_of(self.trace.ids).device
                positions = call(aten.arange.default, (keys,), {"device": device})
                positions = call(aten.unsqueeze.default, (positions, 0))
                rows = call(aten.unsqueeze.default, (self.rows, 1))
                self._masks[known] = call(aten.le.Tensor, (positions, rows))
        return self._masks[known]

    def added_mask(self, mask: Node, dtype: torch.dtype, reader: Node) -> Node:
        """The same as what is added to scores: 0, or minus infinity."""
        call = self.graph.call_function
        with self._before(reader):
            hidden = call(aten.logical_not.default, (mask,))
            zeros = call(aten.zeros_like.default, (mask,), {"dtype": dtype})
            return call(aten.masked_fill.Scalar, (zeros, hidden, -math.inf))


def _from_outer_to_inner(value: Tensor) -> list[int]:
    """Its dimensions by stride, as they lie in memory; in their own order where that is not known."""

    def lies_outside(a: int, b: int) -> bool:
        return statically_known_true(value.stride(a) > value.stride(b))

    def compare(a: int, b: int) -> int:
        return lies_outside(b, a) - lies_outside(a, b)

    return sorted(range(value.dim()), key=cmp_to_key(compare))
