"""A Dynamo backend that splits each prefill over the ranks of a group, then compiles with any other backend.

The runner of a prefill step: ranks compare the rewritten graph once, and the number of rows before each call,
so that a rank that brings another prompt is an error on every rank instead of a hang.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from oproj_pass.agreement.calls import CallAgreement
from oproj_pass.agreement.graphs import GraphText, agree_on_graph, compiling_together
from oproj_pass.backend.dynamo_errors import errors_as_they_are
from oproj_pass.backend.inner import Compiled, inner_backend
from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from oproj_pass.groups import ShardGroup, ShardGroups, shard_group, world_size
from oproj_pass.passes import (
    ContextGroup,
    ContextParallel,
    ContextRecord,
    RedundantCollectives,
    fingerprint,
    run_passes,
)
from oproj_pass.passes.graph.provenance import placeholders, stored_inputs, value_of

logger = logging.getLogger(__name__)


def context_parallel(
    group: ProcessGroup | None = None, *, inner_backend: Any = "auto", timeout: float = 600.0
) -> Callable[[GraphModule, Sequence[Any]], Compiled]:
    """A backend for ``torch.compile``: all ranks bring the same prompts, each computes its rows of them.

        model = torch.compile(model, backend=oproj_pass.context_parallel(), fullgraph=True)

    A graph that cannot be split runs whole on every rank, with a warning that says why.

    Args:
        group: the ranks that share a prefill; the world if None.
        inner_backend: any Dynamo backend, as ``OProjConfig.inner_backend``.
        timeout: seconds to wait for another rank, in compiling and before each call.

    Raises:
        GroupMismatchError: on every rank, if ranks compile different graphs or bring different row counts.
        ConfigError: for a backend that does not exist.
    """
    config = OProjConfig(inner_backend=inner_backend, timeout=timeout, group=group)

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        with errors_as_they_are():
            inputs = dict(zip(placeholders(gm), example_inputs, strict=True))
            return _compile(gm, inputs, config)

    return backend


def _compile(gm: GraphModule, inputs: Mapping[Node, Any], config: OProjConfig) -> Compiled:
    inner, examples = inner_backend(config, inputs), list(inputs.values())
    size = world_size(config.group)
    if size == 1:
        return inner(gm, examples)
    group = shard_group(size, config.group, config.timeout)
    place = ContextGroup(group.size, group.rank, group.device.group_name)
    split = ContextParallel(place)
    record, _ = run_passes(gm, examples, [split, RedundantCollectives([place.group_name])])
    assert isinstance(record, ContextRecord)
    for miss in record.near_misses:
        logger.warning("a graph runs whole on every rank: %s %s", miss.path, miss.reason)
    text = GraphText(fingerprint(gm), "each call")
    agree_on_graph(group, text, config.timeout)
    with compiling_together(group, config.timeout):
        compiled = inner(gm, examples)
    return compiled if record.is_clean else _met_before_each_call(compiled, record, text, group, config)


def _met_before_each_call(
    compiled: Compiled, record: ContextRecord, text: GraphText, group: ShardGroup, config: OProjConfig
) -> Compiled:
    assert record.ids is not None
    path, place = record.matches[0].path, _argument_with_rows(record.ids)
    groups = ShardGroups({group.size: group}, group)

    def rows(arguments: Sequence[Any]) -> Mapping[str, int]:
        ids = arguments[place]
        return {path: ids.shape[-1], f"all sequences of {path}": ids.numel()}

    calls = CallAgreement(groups, path, rows, text, config.timeout)

    def call(*arguments: Any) -> Any:
        with calls.preparing(arguments):
            pass
        return calls.run(compiled, arguments)

    return call


def _argument_with_rows(ids: Node) -> int:
    """The graph's input that has as many entries as there are ids."""
    rows = value_of(ids).shape[-1]
    for node in [ids] if ids.op == "placeholder" else stored_inputs(ids):
        value = value_of(node)
        if isinstance(value, Tensor) and value.dim() and statically_known_true(value.shape[-1] == rows):
            return [*ids.graph.find_nodes(op="placeholder")].index(node)
    raise ConfigError(
        f"`{ids.name}`, the ids of a prefill, are computed from no graph input of as many entries, so that "
        "ranks cannot compare their rows before a call. Compile the model that takes the ids."
    )
