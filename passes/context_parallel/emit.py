"""Writes the split, the gathers and the restore into a graph, as plain nodes."""

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from oproj_pass.passes.context_parallel import index
from oproj_pass.passes.context_parallel.rows import CannotSplit, Size
from oproj_pass.passes.context_parallel.trace import RowTrace
from oproj_pass.passes.graph.collectives import FLOAT8
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
            value = value_of(mine)
            if value.dtype in FLOAT8:
                raise CannotSplit(f"`{mine.name}` is {value.dtype}, which collectives do not take")
            with self._before(reader):
                self._gathers[mine] = self._gather(mine, dim, value.dim())
        return self._gathers[mine]

    def _gather(self, mine: Node, dim: int, rank: int) -> Node:
        call, group = self.graph.call_function, self.group
        in_front = [dim, *(other for other in range(rank) if other != dim)]
        rows = mine if dim == 0 else call(aten.permute.default, (mine, in_front))
        rows = call(aten.contiguous.default, (rows,))
        rows = call(functional.all_gather_into_tensor.default, (rows, group.size, group.group_name))
        rows = call(functional.wait_tensor.default, (rows,))
        rows = call(aten.index_select.default, (rows, 0, self.order))
        if dim == 0:
            return rows
        return call(aten.permute.default, (rows, [in_front.index(other) for other in range(rank)]))

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

    def _entries(self, outer: Size) -> Node | int:
        if isinstance(outer, int):
            return outer
        shape = value_of(self.trace.ids).shape[:-1]
        if not statically_known_true(outer == math.prod(shape)):
            raise CannotSplit(f"{outer} entries are merged into its rows, which are not those of the batch")
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
