"""Puts each weight's slice in its place: while a graph is compiled, and at each of its calls.

1. ``bind``: say which input of the graph is cut, and how.
2. ``compile_with_slices``: let the inner backend compile with copies of the slices as example inputs.
3. ``commit``: only after every rank's inner backend has succeeded, note what the graph relies on.

Nothing of the model changes in any of them: an inner backend may fail, and Dynamo may start its trace again
or refuse the graph afterwards. The full weights are released layer by layer as the compiled graph's first
call brings them. So memory is highest in step 2: the full weights, and the slices of one graph.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch._guards import TracingContext
from torch.fx import GraphModule, Node

from oproj_pass.agreement.calls import CallAgreement
from oproj_pass.agreement.sharded_calls import announce
from oproj_pass.backend.inner import Compiled, Compiler
from oproj_pass.backend.traffic import GraphTraffic
from oproj_pass.groups import ShardGroups
from oproj_pass.passes import ShardRecord
from oproj_pass.passes.graph.stored import is_stored
from oproj_pass.passes.strategies.region import CutTensor
from oproj_pass.weights.guards import accept_released
from oproj_pass.weights.placement import Placement
from oproj_pass.weights.shard import Signature, Use
from oproj_pass.weights.store import Cut, ShardStore


@dataclass(frozen=True)
class Binding:
    """One input of a graph that is cut: the placeholder ``node``, the input at ``position``."""

    node: Node
    position: int
    cut: Cut


def bind(
    inputs: Mapping[Node, Any], record: ShardRecord, groups: ShardGroups, rows: int | None
) -> tuple[Binding, ...]:
    """The inputs that the rewritten graph wants cut, each once; ``rows``: of its step, None if symbolic."""
    positions = {node: position for position, node in enumerate(inputs)}
    return tuple(
        Binding(
            node,
            positions[node],
            Cut(
                cut.region.path,
                _placement(cut, groups),
                Signature.of(inputs[node]),
                record.role_of(node),
                Use(rows, record.manner_of(node)),
            ),
        )
        for node, cut in record.tensors.items()
    )


def _placement(cut: CutTensor, groups: ShardGroups) -> Placement:
    exchange = cut.region.config
    mesh = {axis: peers.size for axis, peers in exchange.mesh}
    return Placement.over(
        (tensor.split, groups.along(axis, exchange.size, mesh)) for axis, tensor in cut.along
    )


def compile_with_slices(
    gm: GraphModule,
    inputs: Mapping[Node, Any],
    bindings: Sequence[Binding],
    inner: Compiler,
    store: ShardStore | None,
) -> Compiled:
    """What the inner backend makes of the graph; ``store`` is None where full weights are kept.

    Raises what the inner backend raises, and ``ConfigError`` if a weight is already sharded in another way.
    """
    examples = dict(inputs)
    for bound in bindings:
        weight = inputs[bound.node]
        examples[bound.node] = (
            store.example_of(weight, bound.cut) if store else bound.cut.placement.part_of(weight)
        )
    with _of_fixed_shape(examples[bound.node] for bound in bindings):
        return inner(gm, list(examples.values()))


def commit(
    compiled: Compiled,
    inputs: Mapping[Node, Any],
    bindings: Sequence[Binding],
    calls: CallAgreement,
    traffic: GraphTraffic | None,
    store: ShardStore,
    *,
    release: bool,
) -> "ShardedGraph":
    """The graph as Dynamo is to call it. Its guards accept released weights; its full readers are known."""
    record_readers(inputs, {bound.node for bound in bindings}, store)
    accept_released(bound.node for bound in bindings)
    return ShardedGraph(compiled, bindings, calls, traffic, store if release else None)


def record_readers(inputs: Mapping[Node, Any], cut: Collection[Node], store: ShardStore) -> None:
    """Note which stored tensors a compiled graph reads in full: none of them may be released any more."""
    store.record_readers(
        (value, node.name) for node, value in inputs.items() if is_stored(node) and node not in cut
    )


class ShardedGraph:
    """A compiled graph whose sharded weights are replaced, at each call, by this rank's slices.

    ``traffic``: what it sends, None where that is not known.
    """

    def __init__(
        self,
        inner: Compiled,
        bindings: Sequence[Binding],
        calls: CallAgreement,
        traffic: GraphTraffic | None,
        store: ShardStore | None,
    ) -> None:
        self.inner, self.traffic = inner, traffic
        self._calls = calls
        self._positions = tuple(bound.position for bound in bindings)
        self._cuts = tuple(bound.cut for bound in bindings)
        self._store = store

    def __call__(self, *args: Any) -> Any:
        """Run with the inputs that Dynamo brings, the full weights' parameters among them."""
        inputs = list(args)
        with self._calls.preparing(args):
            slices = self._slices([inputs[position] for position in self._positions])
        sent_nbytes = partial(self.traffic.of_call, args) if self.traffic else None
        announce(self._calls.groups, sent_nbytes, self._calls.plan)
        for position, slice_ in zip(self._positions, slices, strict=True):
            inputs[position] = slice_
        return self._calls.run(self.inner, inputs)

    def _slices(self, weights: Sequence[Tensor]) -> list[Tensor]:
        if self._store is not None:
            return self._store.slices_of(weights, self._cuts)
        return [cut.placement.part_of(weight) for weight, cut in zip(weights, self._cuts, strict=True)]


@contextmanager
def _of_fixed_shape(slices: Iterable[Tensor]) -> Iterator[None]:
    """Give ``slices`` no symbolic sizes under ``dynamic=True``, as weights have none.

    No guard could name such a symbol, and one that equals the row count would be taken for it.
    """
    context = TracingContext.try_get()
    mode = context.fake_mode if context else None
    fakes = [mode.from_tensor(slice_, static_shapes=True) for slice_ in slices] if mode else []
    yield  # the inner backend finds these fakes as long as they live
    fakes.clear()
