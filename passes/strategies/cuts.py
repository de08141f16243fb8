"""Sees to it that one stored tensor has one placement, and that whatever reads it knows."""

from collections import defaultdict
from collections.abc import Sequence

from torch.fx import Node

from oproj_pass.errors import ConfigError
from oproj_pass.passes.gemm.axes import StoredAxis, TensorAxis
from oproj_pass.passes.gemm.split import Split
from oproj_pass.passes.sites.readers import stray_reader
from oproj_pass.passes.strategies.assignment import Assignment

Cuts = Sequence[tuple[Assignment, StoredAxis]]


def require_one_cut_each(cuts: Cuts) -> None:
    """Raise ``ConfigError`` if two sites cut a tensor in two ways, or something reads it that does not."""
    by_tensor: dict[Node, list[tuple[Assignment, StoredAxis, TensorAxis]]] = defaultdict(list)
    for part, cut in cuts:
        for tensor in cut.tensors:
            by_tensor[tensor.node].append((part, cut, tensor))
    for found in by_tensor.values():
        _require_one_way(found)
        _require_no_stranger(found)


def _require_one_way(found: Sequence[tuple[Assignment, StoredAxis, TensorAxis]]) -> None:
    ways: dict[str, list[tuple[Split, int]]] = defaultdict(list)
    for part, cut, tensor in found:
        ways[part.site.path].append((tensor.split, part.exchange.over(cut.axis).size))
    if len({frozenset(way) for way in ways.values()}) > 1:
        listed = "; ".join(f"{part.site.path} by {part.strategy.name!r}" for part, _, _ in found)
        raise ConfigError(
            f"{found[0][2].path}: its readers cut it in different ways: {listed}. One stored tensor has one "
            "placement: give these layers one strategy, or exclude them."
        )


def _require_no_stranger(found: Sequence[tuple[Assignment, StoredAxis, TensorAxis]]) -> None:
    constants = {node for _, cut, _ in found for node in cut.constants}
    readers = constants.union(*(part.site.readers for part, _, _ in found))
    part, cut, tensor = found[0]
    if (reader := stray_reader(tensor.node, readers, constants)) is not None:
        raise ConfigError(
            f"{part.site.path}: strategy {part.strategy.name!r} cuts {tensor.path or tensor.node.name} along "
            f"{cut.axis.name}, its {cut.axis.value}, and {reader} reads it whole. Choose another strategy "
            "for this layer, or exclude it."
        )
