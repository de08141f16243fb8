"""Follows the rows of a prefill through a graph: which values are local once it is split after its embedding.

One scan in graph order. Sizes that the graph computes keep their meaning, the rows of the whole sequence; a
size that an operation states for the dimension of local rows is noted, to be replaced.
"""

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from oproj_pass.passes.context_parallel.rows import Call, CannotSplit, Followed, Rows, Size, shape_of
from oproj_pass.passes.context_parallel.rules import follow
from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.effects import is_mere_check, mutated_inputs, storage_owner
from oproj_pass.passes.graph.provenance import module_path, value_of

_EMBEDDING = ops.targets("embedding")
_GETITEM = ops.targets("getitem")
_SIZES = ops.targets("sym_size", "size")


@dataclass
class RowTrace:
    """What was found, in graph order.

    ``local``: the values that have local rows, and where. ``followed``: per node that reads one, what it
    needs. ``met``: the nodes at which local rows meet whole ones that were local once. ``sizes``: nodes that
    read the number of rows from a local value, with the batch entries merged into it; ``shapes``: nodes that
    read its whole shape as one value. ``ends``: where rows leave, by node and the value that it reads whole;
    ``refusals``: those among them through which rows cannot be followed; ``unsized``: why it is not
    understood what a shape is read for.
    """

    embedding: Node
    ids: Node
    local: dict[Node, Rows] = field(default_factory=dict)
    followed: dict[Node, Followed] = field(default_factory=dict)
    sizes: dict[Node, Size] = field(default_factory=dict)
    shapes: dict[Node, Rows] = field(default_factory=dict)
    ends: list[tuple[Node, Node]] = field(default_factory=list)
    refusals: list[NearMiss] = field(default_factory=list)
    unsized: list[CannotSplit] = field(default_factory=list)
    met: set[Node] = field(default_factory=set)

    @property
    def total(self) -> Size:
        """Rows of a whole sequence."""
        return value_of(self.ids).shape[-1]  # type: ignore[no-any-return]

    @property
    def attentions(self) -> list[Node]:
        """Where local rows meet whole ones that were local once: each row sees others there."""
        return [node for node in self.local if node in self.met]

    def unit(self, node: Node) -> Node:
        """What is local or whole as one: the memory that in-place writes fill, any other value by itself."""
        written = next(iter(mutated_inputs(node)), node)
        owner = storage_owner(written)
        return owner if owner in self._filled else node

    def settle(self) -> None:
        """Note which local memory is written in place, once the scan is over."""
        owners = {storage_owner(buffer) for node in self.local for buffer in mutated_inputs(node)}
        self._filled = {owner for owner in owners if owner in self.local}

    _filled: set[Node] = field(default_factory=set)


def trace_rows(gm: GraphModule) -> RowTrace | None:
    """Follow the rows behind the first embedding of ids [.., T]; None where the graph looks nothing up."""
    embedding = next((node for node in gm.graph.nodes if _is_lookup(node)), None)
    if embedding is None:
        return None
    scan = _Scan(RowTrace(embedding, _ids_of(embedding)))
    for node in gm.graph.nodes:
        scan.visit(node)
    scan.trace.settle()
    return scan.trace


class _Scan:
    def __init__(self, trace: RowTrace) -> None:
        self.trace = trace
        self._whole_again: set[Node] = set()

    def visit(self, node: Node) -> None:
        trace = self.trace
        if node is trace.embedding:
            trace.local[node] = Rows(len(value_of(trace.ids).shape) - 1)
            return
        sources = [source for source in node.all_input_nodes if source in trace.local]
        if node.op == "output":
            trace.ends += [(node, source) for source in sources]
        elif sources or self._reads_shape_alone(node):
            self._note_meeting(node)
            try:
                self._follow(node, sources)
            except CannotSplit as refusal:
                path = module_path(node) or node.name
                trace.refusals.append(NearMiss(path, f"is not split: {refusal}"))
                trace.followed[node] = Followed(None, is_end=True)
                self._whole_again.add(node)
                trace.ends += [(node, source) for source in sources]
                trace.unsized += [] if sources else [refusal]
        elif not self._whole_again.isdisjoint(node.all_input_nodes):
            self._whole_again.add(node)

    def _reads_shape_alone(self, node: Node) -> bool:
        """Whether it computes with a shape of local rows; what makes a tensor of one is whole."""
        reads_shape = not self.trace.shapes.keys().isdisjoint(node.all_input_nodes)
        return reads_shape and not has_tensor(node)

    def _note_meeting(self, node: Node) -> None:
        if not self._whole_again.isdisjoint(node.all_input_nodes):
            self.trace.met.add(node)

    def _follow(self, node: Node, sources: list[Node]) -> None:
        trace = self.trace
        if not has_tensor(node):
            self._read_size(node, sources)
            return
        found = follow(Call(node, trace.local, trace.shapes, trace.total))
        trace.followed[node] = found
        if found.rows is not None:
            trace.local[node] = found.rows
            trace.met.update([node] if found.gathers else [])
        elif found.gathers or found.is_end:
            self._whole_again.update([node, *map(storage_owner, mutated_inputs(node))])
        if found.is_end:
            trace.ends += [(node, source) for source in sources]

    def _read_size(self, node: Node, sources: list[Node]) -> None:
        """A size of local rows stays that of all rows; a shape is remembered for who reads its entries."""
        is_size = ops.operation(node) in _SIZES or _is_shape(node)
        dim: Any = argument(node, 1, "dim") if not _is_shape(node) else None
        if sources and is_size and not isinstance(dim, int):
            self.trace.shapes[node] = self.trace.local[sources[0]]
        elif sources and is_size:
            self._note_size(node, self.trace.local[sources[0]], dim % len(shape_of(sources[0]) or ()))
        elif not sources and ops.operation(node) in _GETITEM and isinstance(dim, int):
            shape = node.all_input_nodes[0]
            self._note_size(node, self.trace.shapes[shape], dim % len(value_of(shape)))
        elif not is_mere_check(node):
            raise CannotSplit(f"`{node.name}` reads the shape of local rows")

    def _note_size(self, node: Node, rows: Rows, dim: int) -> None:
        if dim == rows.dim:
            self.trace.sizes[node] = rows.outer


def _is_lookup(node: Node) -> bool:
    return ops.operation(node) in _EMBEDDING and shape_of(_ids_of(node)) not in (None, ())


def _ids_of(node: Node) -> Any:
    """The first of ``F.embedding``'s arguments, the second of ATen's."""
    is_aten = isinstance(node.target, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
    position, name = (1, "indices") if is_aten else (0, "input")
    return argument(node, position, name)


def _is_shape(node: Node) -> bool:
    return node.target is getattr and node.args[1] == "shape"


def has_tensor(node: Node) -> bool:
    """Whether a call makes tensors, or writes to one."""
    if node.target is operator.setitem:
        return True
    value = value_of(node)
    return isinstance(value, Tensor) or (
        isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value)
    )
