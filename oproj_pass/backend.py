"""The Dynamo backend ``oproj_npu``: shard, then hand the graph to any other backend by name.

1. Find the projections and decide (``policy``); rewrite the graph (``ShardOProj``).
2. Compare the rewritten graph with the group's other ranks.
3. Compile with the inner backend, slices in the weights' places (``binding``).
4. Once that has succeeded on every rank, hand out a graph that cuts and releases each weight as a call first
   brings it, and meets the other ranks before its first collective (``call_agreement``).

A rank that fails on the way tells its peers.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from oproj_pass.binding import bind, commit, compile_with_slices, record_readers
from oproj_pass.call_agreement import CallAgreement
from oproj_pass.config import OProjConfig
from oproj_pass.dynamo_errors import errors_as_they_are
from oproj_pass.errors import GroupMismatchError, WeightReleasedError
from oproj_pass.graph_agreement import GraphText, agree_on_graph, compiling_together
from oproj_pass.groups import ShardGroup, automatic_size, shard_group, world_size
from oproj_pass.inner import Compiled, Compiler, inner_backend
from oproj_pass.meeting import report_failure
from oproj_pass.npu import run_npu_passes
from oproj_pass.passes import PassRecord, fingerprint, run_passes
from oproj_pass.passes.provenance import placeholders
from oproj_pass.policy import GraphPolicy
from oproj_pass.released import Released
from oproj_pass.store import ShardStore

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
    with errors_as_they_are():
        config = OProjConfig.from_options(options if options is not None else fields)
        inputs = dict(zip(placeholders(gm), example_inputs, strict=True))
        if config.oproj_tensor_parallel_size == 0:
            inner = inner_backend(config, inputs)
            _require_unreleased(inputs, None)
            return inner(gm, list(example_inputs))
        return _compile(gm, inputs, config)


def _compile(gm: GraphModule, inputs: dict[Node, Any], config: OProjConfig) -> Compiled:
    policy = GraphPolicy(gm, inputs, config, _STORE)
    try:
        inner = inner_backend(config, inputs)
        (record,) = run_passes(gm, list(inputs.values()), [policy.sharding_pass()])
        _require_unreleased(inputs, record if policy.group else None)
        if policy.group is not None:
            run_npu_passes(gm, list(inputs.values()), config)
    except Exception as error:
        _tell_peers(error, policy.group, config)
        raise
    _log(record, policy)
    if policy.group is None:
        compiled = inner(gm, list(inputs.values()))
        record_readers(inputs, (), _STORE)
        return compiled
    return _compile_sharded(policy, policy.group, record, inner)


def _compile_sharded(policy: GraphPolicy, group: ShardGroup, record: PassRecord, inner: Compiler) -> Compiled:
    gm, inputs, config = policy.gm, policy.inputs, policy.config
    text = GraphText(fingerprint(gm), policy.rows_compared)
    agree_on_graph(group, text, config.timeout)
    bindings = bind(inputs, record, group)
    with compiling_together(group, config.timeout):
        store = _STORE if config.release_weights else None
        compiled = compile_with_slices(gm, inputs, bindings, inner, store)
    calls = CallAgreement(group, record.matches[0].path, policy.rows, text.digest, config.step_timeout)
    return commit(compiled, inputs, bindings, calls, _STORE, release=config.release_weights)


def _require_unreleased(inputs: Mapping[Node, Any], record: PassRecord | None) -> None:
    """A weight that another graph released must not be read in full by this one."""
    cuts = {cut.node for site in record.matches for cut in site.slices} if record else set()
    for node, value in inputs.items():
        if isinstance(value, Released) and node not in cuts:
            raise WeightReleasedError(
                f"`{node.name}` reads the full weight of {value.shard.describe()}, which was released when "
                "another graph was compiled. Untie the two, or exclude that projection."
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
            report_failure(group, error, config.timeout)
    except Exception as lost:
        logger.warning("could not tell the group of a failure: %s", lost)


def _group_of_peers(config: OProjConfig) -> ShardGroup | None:
    world, size = world_size(config.group), config.oproj_tensor_parallel_size
    size = automatic_size(world, ()) if size == "auto" else size
    return shard_group(size, config.group, config.timeout) if size > 1 and world % size == 0 else None


def _log(record: PassRecord, policy: GraphPolicy) -> None:
    what = f"sharded over ranks {list(policy.group.ranks)}" if policy.group else "found, not sharded"
    total = sum(
        cut.nbytes for cut in {cut.node: cut for site in record.matches for cut in site.slices}.values()
    )
    logger.info("%d output projections %s, %.1f MB of full weights", len(record.matches), what, total / 1e6)
    for miss in record.near_misses:
        logger.info("%s is left alone: %s", miss.path, miss.reason)
    if policy.size > 1 and record.near_misses:
        first = record.near_misses[0]
        logger.warning(
            "%d projections or attentions are left alone, the first is %s: it %s (all of them at level INFO)",
            len(record.near_misses), first.path, first.reason,
        )  # fmt: skip
