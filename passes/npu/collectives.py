"""Spells the exchange the way torchair and npugraph_ex do.

Their decompositions have run before a custom pass, and have turned every other all-to-all of the graph into
``npu_define::all_to_all_single_npu``: counts of elements, and the group by its tag and ranks. torchair lowers
only that form. The remaining functional collectives are lowered as they are.
"""

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.distributed_c10d import _get_group_tag
from torch.fx import Graph, Node

from oproj_pass.errors import ConfigError
from oproj_pass.passes.exchange import Exchange
from oproj_pass.passes.ops import registered
from oproj_pass.passes.process_groups import process_group

functional = torch.ops._c10d_functional


def respell_all_to_all(nodes: Iterable[Node], exchange: Exchange, ranks: tuple[int, ...]) -> None:
    """Rewrite, among ``nodes``, each exchange of a flat buffer in equal parts; its value stays the same.

    Where neither compiler is loaded, nothing is changed.
    """
    if not registered("npu_define::all_to_all_single_npu"):
        return
    tag = _tag(exchange)
    for node in nodes:
        if node.target is functional.all_to_all_single.default:
            count = node.args[1][0]  # type: ignore[index]
            counts = [count] * exchange.size
            with node.graph.inserting_before(node):
                offsets = [_times(node.graph, count, index) for index in range(exchange.size)]
            node.target = torch.ops.npu_define.all_to_all_single_npu.default
            node.args = (node.args[0], counts, offsets, counts, offsets, tag, list(ranks), exchange.size)


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
