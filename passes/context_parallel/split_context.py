"""The pass: see the package."""

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from oproj_pass.passes.context_parallel.emit import ContextGroup, RowWriter
from oproj_pass.passes.context_parallel.plan import WholeValues, gather_for_attention, restore_at
from oproj_pass.passes.context_parallel.product_rules import MASKED_ATTENTION
from oproj_pass.passes.context_parallel.rows import CannotSplit, Size, argument_place, at_place, replace_at
from oproj_pass.passes.context_parallel.trace import RowTrace, has_tensor, trace_rows
from oproj_pass.passes.contract import NearMiss, PassRecord
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.effects import mutated_inputs, storage_owner
from oproj_pass.passes.graph.provenance import module_path, value_of
from oproj_pass.passes.graph.symbols import statically_known_true

_DECODE = "it holds one row a sequence, a decode, which every rank runs whole"


@dataclass(frozen=True)
class SplitAttention:
    """An attention whose queries are split."""

    path: str


@dataclass(frozen=True)
class ContextRecord(PassRecord):
    """What was split. ``ids``: the ids that are looked up; ``gathered``: the values that are gathered for
    attentions, in graph order; ``restored``: the value whose rows are restored."""

    ids: Node | None = None
    gathered: tuple[Node, ...] = ()
    restored: Node | None = None


class ContextParallel:
    """The pass. A graph that cannot be split stays as it is, with a near miss for each reason."""

    name = "context_parallel"

    def __init__(self, group: ContextGroup) -> None:
        self.group = group

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> ContextRecord:
        """Rewrite ``gm``; ``example_inputs`` are left as they are."""
        start = time.perf_counter()
        if self.group.size == 1:
            return ContextRecord(self.name)
        trace = trace_rows(gm)
        if trace is None:
            return self._left_alone([NearMiss("", "is not split: the graph looks up no embedding")], start)
        if statically_known_true(trace.total == 1):
            return self._left_alone(
                [NearMiss(module_path(trace.embedding), f"is not split: {_DECODE}")], start
            )
        try:
            _require_attention(trace)
            _require_sizes(trace)
            already = gather_for_attention(trace)
            value, behind = restore_at(trace, already)
            _require_plain_readers(trace, already, value, behind)
        except CannotSplit as refusal:
            own = NearMiss(module_path(trace.embedding), f"is not split: {refusal}")
            return self._left_alone(trace.refusals or [own], start)
        existing = set(gm.graph.nodes)
        rewrite = _Rewrite(RowWriter(gm.graph, trace, self.group), trace, already, value, behind)
        rewrite.run()
        changed = [node for node in gm.graph.nodes if node not in existing or node in rewrite.local]
        return ContextRecord(
            self.name,
            tuple(SplitAttention(module_path(node) or node.name) for node in trace.attentions),
            changed=tuple(changed),
            seconds=time.perf_counter() - start,
            ids=trace.ids,
            gathered=tuple(node for node in gm.graph.nodes if node in already.gathered),
            restored=value,
        )

    def _left_alone(self, reasons: Iterable[NearMiss], start: float) -> ContextRecord:
        return ContextRecord(self.name, near_misses=tuple(reasons), seconds=time.perf_counter() - start)


def _require_attention(trace: RowTrace) -> None:
    if not trace.attentions:
        leaving = ", ".join(dict.fromkeys(f"`{node.name}`" for node, _ in trace.ends))
        raise CannotSplit(f"no attention reads its rows, which are needed whole by {leaving or 'nothing'}")


def _require_sizes(trace: RowTrace) -> None:
    """Every size that counts rows can be computed: by the rows, and by all entries of the batch."""
    if trace.unsized:
        raise trace.unsized[0]
    batch = math.prod(value_of(trace.ids).shape[:-1])
    stated = (outer for found in trace.followed.values() for _, outer in found.sizes)
    for outer in (*trace.sizes.values(), *(rows.outer for rows in trace.shapes.values()), *stated):
        if not (isinstance(outer, int) or statically_known_true(outer == batch)):
            raise CannotSplit(f"{outer} entries are merged into its rows, which are not those of the batch")


def _require_plain_readers(
    trace: RowTrace, already: WholeValues, value: Node, behind: frozenset[Node]
) -> None:
    """What is whole reads whole values alone, and nothing that was read is written afterwards.

    A write that is not followed goes to all rows: those of a value that is local elsewhere would miss it.
    """
    computed = already.whole | behind | {value}
    whole = computed | already.gathered
    for node in (*already.whole, *behind):
        for source in node.all_input_nodes:
            if source in trace.local and source not in whole:
                raise CannotSplit(f"`{node.name}` reads both local rows and all rows")
    copied = {source for found in trace.followed.values() for source, _ in found.splits}
    whole_writes = {node for node, found in trace.followed.items() if found.is_end}
    owners = {storage_owner(node): node for node in (*copied, *already.gathered, value)}
    is_read: set[Node] = set()
    for node in trace.embedding.graph.nodes:
        for buffer in mutated_inputs(node):
            owner = storage_owner(buffer)
            if node in whole_writes and owner in trace.local and owner not in computed:
                raise CannotSplit(
                    f"`{node.name}` writes to all rows of `{owner.name}`, which are local elsewhere"
                )
            if owner in is_read:
                raise CannotSplit(f"`{node.name}` writes to `{owners[owner].name}` after its rows were moved")
        if node in trace.followed or node in trace.local:
            is_read |= {
                owner for source in node.all_input_nodes if (owner := storage_owner(source)) in owners
            }


class _Rewrite:
    """Applies what was found and decided; ``local``: the values whose rows are this rank's now."""

    def __init__(
        self, writer: RowWriter, trace: RowTrace, already: WholeValues, value: Node, behind: frozenset[Node]
    ) -> None:
        self.writer, self.trace, self.value, self.behind = writer, trace, value, behind
        self.gathered, self.whole = set(already.gathered), already.whole
        self.local = set(trace.local) - already.whole - behind - {trace.embedding}

    def run(self) -> None:
        nodes = list(self.writer.graph.nodes)
        mine = self.writer.start()
        self.trace.local[mine] = self.trace.local[self.trace.embedding]
        if self.trace.embedding in self.gathered:
            self.gathered.add(mine)
        for node in nodes:
            self._state_shapes(node)
            if node in self.trace.sizes:
                self._replace_size(node)
            elif node in self.local:
                self._read_local(node)
            elif node in self.trace.followed or node.op == "output":
                self._read_whole(node)
        for node in (*self.trace.sizes, *self.trace.shapes):
            if not node.users:  # a shape may be read for its other sizes
                self.writer.graph.erase_node(node)

    def _state_shapes(self, reader: Node) -> None:
        """In place of a shape, its sizes: of all rows, or of this rank's where the result is local."""
        if not has_tensor(reader):
            return
        sizes = {
            shape: self.writer.sizes(shape, self.trace.shapes[shape], reader, local=reader in self.local)
            for shape in reader.all_input_nodes
            if shape in self.trace.shapes
        }
        if sizes:
            reader.args, reader.kwargs = map_arg(
                (reader.args, reader.kwargs), lambda node: sizes.get(node, node)
            )

    def _replace_size(self, node: Node) -> None:
        size = self.writer.size(self.trace.sizes[node], node, local=False)
        node.replace_all_uses_with(size)  # type: ignore[arg-type]

    def _read_local(self, node: Node) -> None:
        found = self.trace.followed.get(node)
        if found is None:
            return
        num_keys = value_of(argument(node, 1, "key")).shape[-2] if found.is_causal else 0
        for place in found.gathers:
            replace_at(node, place, self._whole(at_place(node, place), node))
        for source, dim in found.splits:
            node.replace_input_with(source, self.writer.split(source, dim, node))
        for place, outer in found.sizes:
            replace_at(node, place, self.writer.size(outer, node, local=True))
        if found.is_causal:
            self._mask_by_position(node, num_keys)

    def _read_whole(self, node: Node) -> None:
        for source in node.all_input_nodes:
            if source in self.gathered or source is self.value:
                node.replace_input_with(source, self._whole(source, node))

    def _whole(self, source: Node, reader: Node) -> Node:
        if source not in self.gathered and source is not self.value:
            return source
        return self.writer.whole(source, self.trace.local[source].dim, reader)

    def _mask_by_position(self, node: Node, num_keys: Size) -> None:
        mask = self.writer.causal_mask(argument(node, 1, "key"), num_keys, node)
        of_mask, of_causal = MASKED_ATTENTION[ops.operation(node)]
        if of_mask is None:
            mask = self.writer.added_mask(mask, value_of(node)[0].dtype, node)
        for position, name, given in ((of_mask, "attn_mask", mask), (of_causal, "is_causal", False)):
            place = None if position is None else argument_place(node, position, name)
            if place is None or place[0] == "kwargs":
                node.kwargs = {**node.kwargs, name: given}
            else:
                replace_at(node, place, given)
