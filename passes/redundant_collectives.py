"""Takes out gathers that bring nothing, and refuses those that only make copies.

1. Scan: every ``all_gather_into_tensor``, and which values are global already (``graph.replicated``).
2. Decide: a gather of a value that every rank of the group holds already is refused, with its rows and bytes:
   it makes N copies of it. A gather whose only reader takes this rank's own part back is taken out.
3. Rewrite: the reader of the part reads what was gathered.

It leaves alone a gather with two readers, a part of another rank, along another dimension or of another
length, and anything that the graph writes to. A part is taken by a number, and on one rank alone the own part
looks like that rank's part for everyone (a broadcast): so a gather is taken out only over groups whose ranks
compare their graphs before they run them, which tells the two apart.
"""

import math
import operator
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from oproj_pass.errors import RedundantGatherError
from oproj_pass.passes.contract import NearMiss, PassRecord
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.collectives import collective_of, ends_collective
from oproj_pass.passes.graph.process_groups import process_group
from oproj_pass.passes.graph.provenance import module_path, value_of
from oproj_pass.passes.graph.replicated import Replication, group_of
from oproj_pass.passes.graph.symbols import statically_known_true

_SPLIT, _CHUNK = ops.targets("split"), ops.targets("chunk")
_NARROW, _SLICE = ops.targets("narrow"), ops.targets("slice")


@dataclass(frozen=True)
class OwnPart:
    """A gather, all nodes up to the part that its only reader takes of it, and the value gathered."""

    path: str
    source: Node
    nodes: tuple[Node, ...]

    def cancel(self) -> list[Node]:
        """Let the readers of the part read the value; returns those that compute."""
        part = self.nodes[-1]
        readers = [reader for reader in part.users if reader.op != "output"]
        part.replace_all_uses_with(self.source)
        for node in reversed(self.nodes):
            node.graph.erase_node(node)
        return readers


class RedundantCollectives:
    """The pass; raises ``RedundantGatherError``, with nothing changed, for a gather of what every rank holds.

    ``compared_over``: c10d names of the groups whose ranks compare ``fingerprint`` of the rewritten graph
    before they run it. Over any other group, a gather and its own part are a near miss. ``parameters``:
    placeholder name to parameter path, for an exported program.
    """

    name = "redundant_collectives"

    def __init__(
        self, compared_over: Collection[str] = (), *, parameters: Mapping[str, str] | None = None
    ) -> None:
        self.compared_over, self.parameters = compared_over, parameters

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> PassRecord:
        """Rewrite ``gm``; ``example_inputs`` are left as they are."""
        start = time.perf_counter()
        gathers = [node for node in gm.graph.nodes if _is_gather(node)]
        if not gathers:
            return PassRecord(name=self.name, seconds=time.perf_counter() - start)
        replication = Replication(gm, self.parameters)
        for gather in gathers:
            _require_local(gather, replication)
        found = [part for gather in gathers if (part := _own_part(gather)) is not None]
        judged = [(part, self._refusal(part, replication)) for part in found]
        taken = [part for part, reason in judged if reason is None]
        changed = [node for part in taken for node in part.cancel()]
        if taken:
            gm.recompile()  # what changed may be the graph's output alone
        return PassRecord(
            name=self.name,
            matches=tuple(taken),
            near_misses=tuple(NearMiss(part.path, reason) for part, reason in judged if reason),
            changed=tuple(changed),
            seconds=time.perf_counter() - start,
        )

    def _refusal(self, part: OwnPart, replication: Replication) -> str | None:
        if (group_name := group_of(part.nodes[0])) not in self.compared_over:
            return (
                f"gathers over {group_name!r} what it takes its own part of: kept, since the ranks of that "
                "group do not compare their graphs, and a part by number may be one rank's part for everyone"
            )
        if any(map(replication.is_written, (part.source, part.nodes[-1]))):
            return "gathers what it takes its own part of: kept, since the graph writes to one of the two"
        return None


def _is_gather(node: Node) -> bool:
    found = collective_of(node)
    return found is not None and found.name == "all_gather_into_tensor"


def _require_local(gather: Node, replication: Replication) -> None:
    group_name, source = group_of(gather), gather.all_input_nodes[0]
    if group_name is None or not replication.is_global(source, group_name):
        return
    value, size = value_of(source), argument(gather, 1, "group_size")
    rows, nbytes = size * value.shape[0], size * value.element_size() * math.prod(value.shape)
    raise RedundantGatherError(
        f"{module_path(gather) or gather.name}: `{gather.name}` gathers {list(value.shape)}, which each of "
        f"the {size} ranks of group {group_name!r} holds already, into {rows} rows, {_bytes(nbytes)}: {size} "
        "copies of the same. Remove that gather: the value was gathered or summed over the group before."
    )


def _bytes(count: Any) -> str:
    return f"{count / 2**30:.2f} GiB" if isinstance(count, int) else f"{count} bytes"


def _own_part(gather: Node) -> OwnPart | None:
    """The part of this rank, if nothing else reads what the gather brings."""
    nodes = [gather]
    while (reader := _only_reader(nodes[-1])) is not None:
        nodes.append(reader)
        if isinstance(value_of(reader), Tensor) and not ends_collective(reader):
            break
    if ends_collective(nodes[-1]) or len(nodes) < 3:
        return None
    source, bounds = gather.all_input_nodes[0], _bounds(nodes[-1])
    rank, value = _rank(group_of(gather)), value_of(source)
    if bounds is None or rank is None or not isinstance(value, Tensor) or value.dim() == 0:
        return None
    rows = value.shape[0]
    first, length = bounds
    is_own = statically_known_true(first == rank * rows) and statically_known_true(length == rows)
    return OwnPart(module_path(gather) or gather.name, source, tuple(nodes)) if is_own else None


def _only_reader(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _rank(group_name: str | None) -> int | None:
    """This process's place in a group; None where the graph is read without it."""
    try:
        return None if group_name is None else process_group(group_name).rank()
    except (RuntimeError, ValueError, KeyError):
        return None


def _bounds(part: Node) -> tuple[Any, Any] | None:
    """First row and number of rows of a part along dimension 0; None if that is not what the node takes."""
    operation, value = ops.operation(part), value_of(part)
    if not isinstance(value, Tensor) or value.dim() == 0:
        return None
    if operation in _NARROW and argument(part, 1, "dim") == 0:
        return _number(argument(part, 2, "start")), value.shape[0]
    if operation in _SLICE and argument(part, 1, "dim", 0) == 0 and argument(part, 4, "step", 1) == 1:
        return _number(argument(part, 2, "start", 0) or 0), value.shape[0]
    return _bounds_of_item(part, value.shape[0]) if part.target is operator.getitem else None


def _bounds_of_item(part: Node, length: Any) -> tuple[Any, Any] | None:
    """Of ``x[a:b]``, and of an entry of what ``chunk`` or ``split`` returns."""
    source, index = part.args
    if isinstance(index, slice) and index.step in (None, 1):
        return _number(index.start or 0), length
    if not isinstance(source, Node) or not isinstance(index, int) or index < 0:
        return None
    is_list_of_parts = ops.operation(source) in _SPLIT | _CHUNK and argument(source, 2, "dim", 0) == 0
    return (index * value_of(source)[0].shape[0], length) if is_list_of_parts else None


def _number(value: Any) -> Any:
    return value_of(value) if isinstance(value, Node) else value
