"""A graph's collectives in order, as text that ranks can compare.

Two ranks whose graphs issue different collectives hang, or exchange garbage; comparing this text first turns
that into an error that names the first difference. The comparison's own communication is the caller's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.fx import GraphModule, Node

from oproj_pass.passes.graph.collectives import (
    collective_of,
    communicator,
    communicator_size,
    is_collective,
    listed_ranks,
)
from oproj_pass.passes.graph.process_groups import process_group
from oproj_pass.passes.graph.provenance import module_path, value_of


@dataclass(frozen=True)
class Fingerprint:
    """One line per collective: operation, input type and shape, group ranks and module path.

    Of a symbolic size it says what is static: ``96*?`` is any multiple of 96.
    """

    lines: tuple[str, ...]


def fingerprint(gm: GraphModule, ranks: Sequence[int] = ()) -> Fingerprint:
    """The functional collectives of ``gm`` in the order in which they run.

    ``ranks``: global ranks that compare it. Where they fall into several groups alike, a group goes by its
    size, since each rank has its own; a group that has only one of them goes by its distances from that one.
    """
    return Fingerprint(tuple(_describe(node, ranks) for node in gm.graph.nodes if is_collective(node)))


def first_difference(by_rank: Mapping[int, Fingerprint]) -> str | None:
    """In words, where the ranks' collectives first differ; None if they are the same."""
    if len(set(by_rank.values())) <= 1:
        return None
    for index in range(max(len(print_.lines) for print_ in by_rank.values())):
        found = {rank: _line(print_, index) for rank, print_ in by_rank.items()}
        if len(set(found.values())) > 1:
            return f"collective {index + 1}: " + "; ".join(
                f"rank {rank}: {line}" for rank, line in found.items()
            )
    return None


def _line(print_: Fingerprint, index: int) -> str:
    return print_.lines[index] if index < len(print_.lines) else "none"


def _describe(node: Node, ranks: Sequence[int]) -> str:
    found = collective_of(node)
    assert found is not None
    source = node.all_input_nodes[0]
    where = module_path(node)
    return f"{found.name} {_shape(value_of(source))} over {_group(node, ranks)}" + (
        f" at {where}" if where else ""
    )


def _shape(value: object) -> str:
    if not isinstance(value, Tensor):
        return "unknown"
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(_size, value.shape))}]"


def _size(size: int | torch.SymInt) -> str:
    """A static size, or the static factor of a symbolic one: symbols may have other names on other ranks."""
    if isinstance(size, int):
        return str(size)
    factor, rest = size.node.expr.as_content_primitive()
    return str(factor) if rest == 1 else "?" if factor == 1 else f"{factor}*?"


def _group(node: Node, comparing: Sequence[int]) -> str:
    if communicator(node) is not None:  # its name need not be the same on every rank
        return f"{communicator_size(node)} ranks"
    if (ranks := listed_ranks(node)) is not None:
        return _among(list(ranks), list(comparing))
    name = str(node.args[-1])
    try:
        return _among(dist.get_process_group_ranks(process_group(name)), list(comparing))
    except (RuntimeError, ValueError, KeyError):  # a graph may be read where its group does not exist
        return f"group {name!r}"


def _among(ranks: list[int], comparing: list[int]) -> str:
    """The ranks of a group, how many of those that compare make one of several alike, or who is beside."""
    size = len(ranks)
    own = [rank for rank in ranks if rank in comparing]
    if len(own) == 1 and len(comparing) > 1:
        distances = ", ".join(f"{rank - own[0]:+d}" for rank in ranks)
        return f"each of ranks {comparing} with {distances}"
    for stride in range(1, len(comparing) // size + 1):
        span = size * stride
        blocks = [comparing[start : start + span] for start in range(0, len(comparing), span)]
        groups = [block[first::stride] for block in blocks for first in range(stride)]
        if len(groups) > 1 and ranks in groups:
            return f"each {size} of ranks {comparing}" + (f", {stride} apart" if stride > 1 else "")
    return f"ranks {ranks}"
