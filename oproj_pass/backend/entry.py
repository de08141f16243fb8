"""The Dynamo backend ``oproj_npu``: shard, then hand the graph to any other backend by name.

1. Find the sites (``finding``), decide (``policy``), rewrite the graph: one list of passes.
2. Compare the rewritten graph with the group's other ranks.
3. Compile with the inner backend, slices in the weights' places (``binding``).
4. Once that has succeeded on every rank, hand out a graph that cuts and releases each weight as a call first
   brings it, and meets the other ranks before its first collective (``call_agreement``).

A rank that fails on the way tells its peers.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from oproj_pass.agreement.barrier import report_failure
from oproj_pass.agreement.calls import CallAgreement
from oproj_pass.agreement.graphs import GraphText, agree_on_graph, compiling_together
from oproj_pass.backend.ascend import log_untaken, npu_passes
from oproj_pass.backend.binding import bind, commit, compile_with_slices, record_readers
from oproj_pass.backend.by_size import options_of_graph, rows_of_graph
from oproj_pass.backend.chunks import chosen_chunks
from oproj_pass.backend.dynamo_errors import errors_as_they_are
from oproj_pass.backend.exchanges import exchanges_over, groups_of, log_unchunked, on_mesh
from oproj_pass.backend.finding import find_sites
from oproj_pass.backend.inner import Compiled, Compiler, inner_backend
from oproj_pass.backend.policy import Decision, GraphPlace, decide
from oproj_pass.backend.reduce import chosen_reduce
from oproj_pass.backend.row_counts import ComparedRows
from oproj_pass.backend.sizes import largest_sizes, may_shard
from oproj_pass.backend.trace import trace_decision
from oproj_pass.backend.traffic import GraphTraffic
from oproj_pass.backend.world import require_world
from oproj_pass.config import OProjConfig
from oproj_pass.errors import GroupMismatchError, WeightReleasedError
from oproj_pass.groups import ShardGroup, ShardGroups, joint_group
from oproj_pass.passes import (
    Assignment,
    Exchange,
    GraphPass,
    RedundantCollectives,
    ShardOProj,
    ShardPlan,
    ShardRecord,
    fingerprint,
    run_passes,
)
from oproj_pass.passes.graph.provenance import placeholders
from oproj_pass.passes.sites.options import ROLE_TITLES, of_role
from oproj_pass.weights.checks import require_ready
from oproj_pass.weights.released import Released
from oproj_pass.weights.store import ShardStore

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
        if not config.roles:
            inner = inner_backend(config, inputs)
            _require_unreleased(inputs, ())
            return inner(gm, list(example_inputs))
        return _compile(gm, inputs, config)


def _compile(gm: GraphModule, inputs: dict[Node, Any], config: OProjConfig) -> Compiled:
    groups: ShardGroups | None = None
    try:
        require_world(config)
        inner = inner_backend(config, inputs)
        found = find_sites(gm, inputs, config, _STORE.reader_of if may_shard(config) else None)
        decision = decide(*found, config, GraphPlace.of(gm))
        if sharded := decision.sharded:
            _require_weights_ready(decision, inputs)
            config = options_of_graph(sharded, config)
            groups = groups_of(decision, config)
            rows = ComparedRows.of(sharded, list(inputs), config)
            reduce = chosen_reduce(decision, inputs, groups, config)
            chunks = chosen_chunks(decision, inputs, groups, config, reduce)
            exchanges = exchanges_over(groups, rows, config, reduce, chunks)
            record = _rewrite(gm, inputs, decision, groups, exchanges, config)
        _require_unreleased(inputs, record.tensors if groups else {})
    except Exception as error:
        _tell_peers(error, groups.joint if groups else None, config)
        raise
    _log(decision)
    trace_decision(decision)
    if groups is None:
        compiled = inner(gm, list(inputs.values()))
        record_readers(inputs, (), _STORE)
        return compiled
    return _compile_sharded(gm, inputs, record, groups, rows, config, inner)


def _require_weights_ready(decision: Decision, inputs: Mapping[Node, Any]) -> None:
    for site in decision.sharded:
        for cut in decision.cuts_of(site):
            for tensor in cut.tensors:
                require_ready(inputs[tensor.node], site.path)


def _rewrite(
    gm: GraphModule,
    inputs: Mapping[Node, Any],
    decision: Decision,
    groups: ShardGroups,
    exchanges: Mapping[int, Exchange],
    config: OProjConfig,
) -> ShardRecord:
    """Run the one list of passes; returns what is cut after all of them."""
    assignments = [
        Assignment(site, strategy, on_mesh(exchanges[decision.size_of(site)], groups, strategy))
        for site in decision.sharded
        for strategy in [decision.strategy_of(site)]
    ]
    log_unchunked(assignments)
    sharding = ShardOProj(ShardPlan(decision.sites, decision.near_misses, assignments))
    examples = list(inputs.values())
    redundant = RedundantCollectives([exchange.group_name for exchange in exchanges.values()])
    passes: list[GraphPass] = [sharding, redundant, *npu_passes(sharding.regions, examples, config)]
    record, *others = run_passes(gm, examples, passes)
    for other in others:
        log_untaken(other)
    assert isinstance(record, ShardRecord)
    return record


def _compile_sharded(
    gm: GraphModule,
    inputs: dict[Node, Any],
    record: ShardRecord,
    groups: ShardGroups,
    rows: ComparedRows,
    config: OProjConfig,
    inner: Compiler,
) -> Compiled:
    plan = config.plan.fingerprint if config.plan else ""
    text = GraphText(fingerprint(gm, groups.joint.ranks), rows.words, plan)
    traffic = GraphTraffic.of(gm, list(inputs))
    agree_on_graph(groups.joint, text, config.timeout)
    bindings = bind(inputs, record, groups, rows_of_graph(record.matches))
    with compiling_together(groups.joint, config.timeout):
        store = _STORE if config.release_weights else None
        compiled = compile_with_slices(gm, inputs, bindings, inner, store)
    calls = CallAgreement(groups, record.regions[0].path, rows.counts, text, config.step_timeout)
    return commit(compiled, inputs, bindings, calls, traffic, _STORE, release=config.release_weights)


def _require_unreleased(inputs: Mapping[Node, Any], cuts: Collection[Node]) -> None:
    """A weight that another graph released must not be read in full by this one."""
    for node, value in inputs.items():
        if isinstance(value, Released) and node not in cuts:
            raise WeightReleasedError(
                f"`{node.name}` reads the full weight of {value.shard.describe()}, which was released when "
                "another graph was compiled. Untie the two, or exclude that module."
            )


def _tell_peers(error: Exception, group: ShardGroup | None, config: OProjConfig) -> None:
    """Peers may have no error of their own: bring them this one instead of leaving them waiting.

    Whatever becomes of that, ``error`` is the one to raise; without a group there is nobody to tell.
    """
    if isinstance(error, GroupMismatchError):
        return
    try:
        group = group or joint_group(largest_sizes(config), config.group, config.timeout)
        if group is not None:
            report_failure(group, error, config.timeout)
    except Exception as lost:
        logger.warning("could not tell the group of a failure: %s", lost)


def _log(decision: Decision) -> None:
    for role, size in decision.sizes.items():
        sites = of_role(decision.sites, role)
        nbytes = {tensor.node: tensor.nbytes for site in sites for tensor in site.stored}
        if sites:
            what = f"sharded over {size} ranks" if size > 1 else "found, not sharded"
            logger.info(
                "%d %s(s) %s, %.1f MB of full weights",
                len(sites), ROLE_TITLES[role], what, sum(nbytes.values()) / 1e6,
            )  # fmt: skip
    for miss in decision.near_misses:
        logger.info("%s is left alone: %s", miss.path, miss.reason)
    if left := [miss for miss in decision.near_misses if decision.size_of(miss) > 1]:
        logger.warning(
            "%d modules are left alone, the first is %s: it %s (all of them at level INFO)",
            len(left), left[0].path, left[0].reason,
        )  # fmt: skip
