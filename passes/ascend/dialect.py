"""Spells what ``ShardOProj`` emits the way torchair and npugraph_ex expect it after AOTAutograd.

- ``reshape`` means a view there: torchair takes it for one and forgets the permutation before it, so a copy
  must be written out.
- A cast is ``_to_copy``.
- An all-to-all has become ``npu_define::all_to_all_single_npu``: counts of elements, and the group by its tag
  and ranks. torchair lowers only that form; the other functional collectives it lowers as they are.
"""

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.distributed_c10d import _get_group_tag
from torch.fx import Graph, Node

from oproj_pass.errors import ConfigError
from oproj_pass.passes.graph.metadata import inherit_origin, propagate
from oproj_pass.passes.graph.ops import registered
from oproj_pass.passes.graph.process_groups import process_group
from oproj_pass.passes.graph.provenance import value_of
from oproj_pass.passes.strategies.exchange import Exchange

aten, functional = torch.ops.aten, torch.ops._c10d_functional


def respell(nodes: Iterable[Node], exchange: Exchange, ranks: tuple[int, ...]) -> None:
    """Rewrite those of ``nodes`` that have another spelling; every value stays the same.

    Where neither compiler is loaded, the all-to-all stays as it is. Its buffers are flat, in equal parts.
    """
    for node in nodes:
        if node.target is aten.reshape.default:
            _respell_reshape(node)
        elif node.target is aten.to.dtype:
            source, dtype = node.args
            node.target, node.args, node.kwargs = aten._to_copy.default, (source,), {"dtype": dtype}
        elif node.target is functional.all_to_all_single.default and _has_own_all_to_all():
            _respell_all_to_all(node, exchange, ranks)


def _respell_reshape(node: Node) -> None:
    source, shape = node.args
    if not value_of(source).is_contiguous():  # type: ignore[arg-type]
        with node.graph.inserting_before(node):
            source = node.graph.call_function(
                aten.clone.default, (source,), {"memory_format": torch.contiguous_format}
            )
        inherit_origin(source, node)
        propagate([source], "val")
    node.target, node.args = aten.view.default, (source, shape)
    propagate([node], "val")


def _has_own_all_to_all() -> bool:
    return bool(registered("npu_define::all_to_all_single_npu"))


def _respell_all_to_all(node: Node, exchange: Exchange, ranks: tuple[int, ...]) -> None:
    count = node.args[1][0]  # type: ignore[index]
    counts = [count] * exchange.size
    with node.graph.inserting_before(node):
        offsets = [_times(node.graph, count, index) for index in range(exchange.size)]
    node.target = torch.ops.npu_define.all_to_all_single_npu.default
    node.args = (node.args[0], counts, offsets, counts, offsets, _tag(exchange), list(ranks), exchange.size)


def _tag(exchange: Exchange) -> Any:
    try:
        return _get_group_tag(process_group(exchange.group_name))
    except RuntimeError:
        raise ConfigError(
            f"the process group {exchange.group_name!r} that npu_pass was made for no longer exists: make "
            "the pass again after torch.distributed.init_process_group."
        ) from None


def _times(graph: Graph, count: Any, index: int) -> Any:
    if isinstance(count, int) or index == 0:
        return index and count * index
    node = graph.call_function(operator.mul, (count, index))
    node.meta["val"] = count.meta["val"] * index
    return node
