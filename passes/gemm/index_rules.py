"""Rules for what picks from a tensor: ``select``, ``slice``, and ``x[...]`` in all its forms."""

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from oproj_pass.passes.gemm.following_step import CannotFollow, Inputs, Step, only_input, rank
from oproj_pass.passes.graph.arguments import argument
from oproj_pass.passes.graph.provenance import value_of


def selected(step: Step) -> Inputs:
    """``select`` drops a dimension."""
    dim = argument(step.node, 1, "dim", 0) % rank(step.node.args[0])
    return Inputs((step.to(step.node.args[0], step.dim + (dim <= step.dim)),))


def sliced(step: Step) -> Inputs:
    """A part of another dimension; of K only ``[:K]``, which cuts an incomplete last block to its length."""
    dim = argument(step.node, 1, "dim", 0)
    if dim % len(step.shape) == step.dim:
        _require_start(step, argument(step.node, 2, "start", 0), argument(step.node, 4, "step", 1))
    return only_input(step)


def _require_start(step: Step, start: Any, stride: Any) -> None:
    """An end needs no care: where K can be split at all, it lies behind every rank's part."""
    if start not in (None, 0) or stride not in (None, 1):
        raise CannotFollow(f"is cut along {step.axis.name} by `{step.node.name}`")


def indexed(step: Step) -> Inputs:
    """``x[...]``: dimensions kept, cut, dropped, added, or picked from by one index tensor."""
    source, index = step.node.args
    if isinstance(source, Node) and not isinstance(value_of(source), Tensor):
        raise CannotFollow(
            f"is computed by `{step.node.name}`, through which {step.axis.name} cannot be followed"
        )
    return _by_items(step, source, index if isinstance(index, tuple) else (index,))


def picked(step: Step) -> Inputs:
    """``aten.index``: an index tensor or nothing for each dimension."""
    source, indices = step.node.args
    items = tuple(slice(None) if item is None else item for item in indices)  # type: ignore[union-attr]
    return _by_items(step, source, items)


def index_selected(step: Step) -> Inputs:
    """``index_select`` along K picks a row for every feature, as an index tensor does."""
    dim, index = argument(step.node, 1, "dim", None), argument(step.node, 2, "index", None)
    if dim % len(step.shape) == step.dim:
        return _picked_by(step, index, 0)
    return only_input(step)


def _by_items(step: Step, source: Any, items: tuple[Any, ...]) -> Inputs:
    before = after = 0
    for item in _complete(step, items, rank(source)):
        width = _width(item)
        if after <= step.dim < after + width:
            return _of_item(step, source, item, before, step.dim - after)
        before, after = before + (item is not None), after + width
    raise CannotFollow(f"is picked out by `{step.node.name}`")


def _complete(step: Step, items: tuple[Any, ...], dims: int) -> list[Any]:
    """One item for each dimension of the source, and None for each added one; any other index is refused."""
    if any(not _is_plain(item) for item in items):
        raise CannotFollow(
            f"is picked by `{step.node.name}` with an index that is no slice, number or tensor"
        )
    if sum(isinstance(item, Node) for item in items) > 1:
        raise CannotFollow(f"is picked by several indices at `{step.node.name}`")
    missing = dims - sum(item is not None and item is not Ellipsis for item in items)
    where = next((place for place, item in enumerate(items) if item is Ellipsis), len(items))
    return [*items[:where], *[slice(None)] * missing, *items[where + 1 :]]


def _is_plain(item: Any) -> bool:
    if isinstance(item, Node):  # a mask stands for as many dimensions as it has
        value = value_of(item)
        return isinstance(value, Tensor) and value.dtype not in (torch.bool, torch.uint8)
    is_number = isinstance(item, int) and not isinstance(item, bool)
    return is_number or item is None or item is Ellipsis or isinstance(item, slice)


def _width(item: Any) -> int:
    """Dimensions of the result that an item makes."""
    return value_of(item).dim() if isinstance(item, Node) else int(not isinstance(item, int))


def _of_item(step: Step, source: Any, item: Any, before: int, within: int) -> Inputs:
    if isinstance(item, Node):
        return _picked_by(step, item, within)
    if item is None:
        raise CannotFollow(f"is stretched by `{step.node.name}`")
    _require_start(step, item.start, item.step)
    return Inputs((step.to(source, before),))


def _picked_by(step: Step, index: Any, within: int) -> Inputs:
    """GPTQ's ``g_idx``: a row of scales for every feature, all rows on every rank."""
    return Inputs((step.to(index, within),))
