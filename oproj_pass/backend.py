"""The Dynamo backend ``oproj_npu``: shard, then hand the graph to any other backend by name.

1. Find the projections and decide (``policy``); rewrite the graph (``ShardOProj``).
2. Compare the rewritten graph with the group's other ranks.
3. Cut each weight's slice and release the full weight, layer by layer.
4. Compile with the inner backend; at each call, put the slices in the weights' places.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from oproj_pass.torch_internals import require_internals

require_internals("oproj_pass")

from torch import Tensor
from torch._dynamo.exc import ShortenTraceback
from torch._guards import TracingContext
from torch.fx import GraphModule, Node

from oproj_pass.config import OProjConfig
from oproj_pass.errors import GroupMismatchError, OProjError, WeightReleasedError
from oproj_pass.graph_agreement import agree_on_graph, report_failure
from oproj_pass.groups import ShardGroup, automatic_size, shard_group, world_size
from oproj_pass.inner import Compiled, Compiler, inner_backend
from oproj_pass.npu import run_npu_passes
from oproj_pass.passes import PassRecord, fingerprint, run_passes
from oproj_pass.passes.provenance import placeholders
from oproj_pass.passes.stored import is_stored
from oproj_pass.policy import GraphPolicy
from oproj_pass.released import Layout, Released
from oproj_pass.store import ShardStore
from oproj_pass.weight_guards import accept_released

logger = logging.getLogger(__name__)

_STORE = ShardStore()  # physical memory of this process, shared by all its compiled graphs


def oproj_npu(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | OProjConfig | None = None,
    **fields: Any,
) -> Compiled:
    """Compile a Dynamo graph with its attention output projections sharded over a group of ranks.

    Registered as the Dynamo backend ``oproj_npu``; ``options`` are the fields of ``OProjConfig`` (vLLM passes
    them as keyword arguments). Raises an ``OProjError`` for every refusal, with the model left as it was.
    """
    with _errors_as_they_are():
        config = OProjConfig.from_options(options if options is not None else fields)
        inputs = dict(zip(placeholders(gm), example_inputs, strict=True))
        inner = inner_backend(config, inputs)
        if config.oproj_tensor_parallel_size == 0:
            _require_unreleased(inputs, None)
            return inner(gm, list(example_inputs))
        return _compile(gm, inputs, config, inner)


def _compile(gm: GraphModule, inputs: dict[Node, Any], config: OProjConfig, inner: Compiler) -> Compiled:
    policy = GraphPolicy(gm, inputs, config, _STORE)
    try:
        (record,) = run_passes(gm, list(inputs.values()), [policy.sharding_pass()])
        _require_unreleased(inputs, record if policy.group else None)
        if policy.group is not None:
            run_npu_passes(gm, list(inputs.values()), config)
    except Exception as error:
        _tell_peers(error, policy.group, config)
        raise
    _log(record, policy.group)
    if policy.group is None:
        _record_readers(inputs, ())
        return inner(gm, list(inputs.values()))
    agree_on_graph(policy.group, fingerprint(gm))
    return _bind(gm, inputs, record, policy.group, config, inner)


def _bind(
    gm: GraphModule,
    inputs: dict[Node, Any],
    record: PassRecord,
    group: ShardGroup,
    config: OProjConfig,
    inner: Compiler,
) -> Compiled:
    """Put each weight's slice in its place, now and at every call of the compiled graph."""
    cuts = {cut.node: (cut.dim, site.path) for site in record.matches for cut in site.slices}
    _record_readers(inputs, cuts)
    positions = {node: position for position, node in enumerate(inputs)}
    bindings = []
    for weight, (dim, path) in cuts.items():
        layout = Layout(dim, group)
        slice_of = _releasing(layout, path) if config.release_weights else layout.slice_of
        inputs[weight] = slice_of(inputs[weight])
        bindings.append((positions[weight], slice_of))
    accept_released(cuts)
    with _of_fixed_shape(inputs[weight] for weight in cuts):
        return ShardedGraph(inner(gm, list(inputs.values())), bindings)


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


def _releasing(layout: Layout, path: str) -> Callable[[Tensor], Tensor]:
    return lambda weight: _STORE.shard_of(weight, layout, path)


class ShardedGraph:
    """A compiled graph whose projection weights are replaced, at each call, by this rank's slices."""

    def __init__(self, inner: Compiled, bindings: Sequence[tuple[int, Callable[[Tensor], Tensor]]]) -> None:
        self.inner = inner
        self.bindings = tuple(bindings)

    def __call__(self, *args: Any) -> Any:
        """Run with the inputs that Dynamo brings, the full weights' parameters among them."""
        inputs = list(args)
        for position, slice_of in self.bindings:
            inputs[position] = slice_of(inputs[position])
        return self.inner(*inputs)


def _require_unreleased(inputs: Mapping[Node, Any], record: PassRecord | None) -> None:
    """A weight that another graph released must not be read in full by this one."""
    cuts = {cut.node for site in record.matches for cut in site.slices} if record else set()
    for node, value in inputs.items():
        if isinstance(value, Released) and node not in cuts:
            raise WeightReleasedError(
                f"`{node.name}` reads the full weight of {value.shard.describe()}, which was released when "
                "another graph was compiled. Untie the two, or exclude that projection."
            )


def _record_readers(inputs: Mapping[Node, Any], cuts: Collection[Node]) -> None:
    _STORE.record_readers(
        (value, node.name) for node, value in inputs.items() if is_stored(node) and node not in cuts
    )


def _tell_peers(error: Exception, group: ShardGroup | None, config: OProjConfig) -> None:
    """Peers may have no error of their own: bring them this one instead of leaving them waiting.

    Whatever becomes of that, ``error`` is the one to raise; without a group there is nobody to tell.
    """
    if isinstance(error, GroupMismatchError):
        return
    try:
        group = group or _group_of_peers(config)
        if group is not None:
            report_failure(group, error)
    except Exception as lost:
        logger.warning("could not tell the group of a failure: %s", lost)


def _group_of_peers(config: OProjConfig) -> ShardGroup | None:
    world, size = world_size(config.group), config.oproj_tensor_parallel_size
    size = automatic_size(world, ()) if size == "auto" else size
    return shard_group(size, config.group, config.timeout) if size > 1 and world % size == 0 else None


def _log(record: PassRecord, group: ShardGroup | None) -> None:
    what = f"sharded over ranks {list(group.ranks)}" if group else "found, not sharded"
    total = sum(
        cut.nbytes for cut in {cut.node: cut for site in record.matches for cut in site.slices}.values()
    )
    logger.info("%d output projections %s, %.1f MB of full weights", len(record.matches), what, total / 1e6)
    for miss in record.near_misses:
        logger.info("%s is left alone: %s", miss.path, miss.reason)
    if group and record.near_misses:
        first = record.near_misses[0]
        logger.warning(
            "%d projections or attentions are left alone, the first is %s: it %s (all of them at level INFO)",
            len(record.near_misses), first.path, first.reason,
        )  # fmt: skip


class _Unwrapped(ShortenTraceback):
    """What Dynamo raises as it is; anything else it wraps in ``BackendCompilerFailed``."""

    def __init__(self, *args: Any) -> None:
        Exception.__init__(self, *args)
        self.first_useful_frame = None


@contextmanager
def _errors_as_they_are() -> Iterator[None]:
    """Let our errors reach the caller of the compiled model under their own type."""
    try:
        yield
    except OProjError as error:
        kind = type(error)
        unwrapped = type(kind.__name__, (_Unwrapped, kind), {"__module__": kind.__module__})
        raise unwrapped(*error.args).with_traceback(error.__traceback__) from error.__cause__
