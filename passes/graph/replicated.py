"""Which values of a graph are global: the same on every rank of a process group. All others count as local.

1. A gather or a sum over a group is global to it.
2. What an operation makes of global values is global to the groups that all of them are global to; a stored
   vector beside them (a norm's weight) changes nothing. By itself any stored weight may be a rank's part, so
   it is local, and so is a product with one.
3. A part taken by number, a number added to integers, and a random draw may differ by rank: local. So is what
   shares its memory with anything that the graph writes.

Errs on one side only: a value that it calls global is the same on all ranks.
"""

import operator
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument, named_argument
from oproj_pass.passes.graph.collectives import collective_of, ends_collective
from oproj_pass.passes.graph.effects import mutated_inputs, storage_owner
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.graph.stored import parameter_paths

_MAKES_GLOBAL = ("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_reduce", "broadcast")
_BY_NUMBER = ops.targets(
    "select", "slice", "narrow", "split", "split_with_sizes", "chunk", "unbind", "roll", "pad",
    "constant_pad_nd", "as_strided", "slice_scatter", "select_scatter",
)  # fmt: skip
_RANDOM = ops.targets("dropout", "native_dropout")
_ARITHMETIC = ops.POINTWISE | ops.COMBINE
_KEEPS = (ops.PASS_THROUGH | ops.COMBINE | ops.SOFTMAX) - _BY_NUMBER - _RANDOM
_INDEX_SELECT = ops.targets("index_select")
_INDEX = _INDEX_SELECT | ops.targets("getitem", "index")


class Replication:
    """The groups that each value of a graph is global to, by their c10d names.

    ``parameters``: names of the placeholders that hold stored weights, as ``parameter_paths`` takes them.
    """

    def __init__(self, gm: GraphModule, parameters: Mapping[str, str] | None = None) -> None:
        nodes = list(gm.graph.nodes)
        self._stored = parameter_paths(gm, parameters) or {}
        self._written = {storage_owner(buffer) for node in nodes for buffer in mutated_inputs(node)}
        self._all = frozenset(name for node in nodes if (name := group_of(node)) is not None)
        self._vectors: set[Node] = set()
        self._groups: dict[Node, frozenset[str]] = {}
        for node in nodes if self._all else ():
            is_written = storage_owner(node) in self._written
            self._groups[node] = frozenset() if is_written else self._of(node)

    def is_global(self, node: Node, group_name: str) -> bool:
        """Whether every rank of the group holds the same value."""
        return group_name in self._groups.get(node, ())

    def is_written(self, node: Node) -> bool:
        """Whether the graph writes to memory that the value may share."""
        return storage_owner(node) in self._written

    def _of(self, node: Node) -> frozenset[str]:
        if (name := group_of(node)) is not None:
            found = collective_of(node)
            return frozenset([name]) if found and found.name in _MAKES_GLOBAL else frozenset()
        sources = [source for source in node.all_input_nodes if not _is_number(source)]
        if node in self._stored and _is_vector(node):
            self._vectors.add(node)
        if not sources or not self._keeps(node):
            return frozenset()
        if self._vectors.issuperset(sources):
            self._vectors.add(node)
            return frozenset()
        return self._all.intersection(*(self._groups[x] for x in sources if x not in self._vectors))

    def _keeps(self, node: Node) -> bool:
        operation = ops.operation(node)
        if ends_collective(node):
            return True
        if operation in _INDEX:
            return not _picks_by_number(node)
        return operation in _KEEPS and not (operation in _ARITHMETIC and _shifts_integers(node))


def group_of(node: Node) -> str | None:
    """The process group of a functional collective by its c10d name; None for any other node."""
    if collective_of(node) is None:
        return None
    name = named_argument(node, "group_name")
    return None if name is None else str(name)


def _is_vector(node: Node) -> bool:
    value = value_of(node)
    return isinstance(value, Tensor) and value.dim() <= 1 and value.is_floating_point()


def _is_number(node: Node) -> bool:
    return isinstance(value_of(node), int | float | torch.SymInt | torch.SymFloat)


def _shifts_integers(node: Node) -> bool:
    """Arithmetic of an integer tensor with a number, which may be where a rank's part starts."""
    value = value_of(node)
    is_integer = isinstance(value, Tensor) and not value.is_floating_point()
    return is_integer and any(
        isinstance(given, int | float) or (isinstance(given, Node) and _is_number(given))
        for given in (*node.args, *node.kwargs.values())
    )


def _picks_by_number(node: Node) -> bool:
    """An index that is not wholly made of tensors and full slices; an entry of a list is no such index."""
    index = argument(node, 1, "index", argument(node, 1, "indices"))
    if node.target is operator.getitem and not isinstance(value_of(node.args[0]), Tensor):  # type: ignore[arg-type]
        return False
    if ops.operation(node) in _INDEX_SELECT:
        return False
    return not all(
        item in (None, Ellipsis, slice(None)) or isinstance(item, Node)
        for item in (index if isinstance(index, list | tuple) else (index,))
    )
