"""Ranks compare their rewritten graphs before the first step.

Exactly one collective on every rank and for every graph, whatever became of the graph there: a rank whose
rewrite failed brings its error, so that its peers raise instead of waiting.
"""

import json
import zlib

import torch
import torch.distributed as dist

from oproj_pass.errors import GroupMismatchError
from oproj_pass.groups import ShardGroup
from oproj_pass.passes.fingerprint import Fingerprint, first_difference

_BUFFER_BYTES = 1 << 16  # about 60,000 lines of a fingerprint, compressed
_FAILED = "failed: "


def agree_on_graph(group: ShardGroup, mine: Fingerprint) -> None:
    """Raise ``GroupMismatchError`` on every rank of ``group`` unless all bring the same collectives."""
    if not group.has_peers:
        return
    by_rank = _gather(group, mine)
    failed = {rank: print_.lines[0] for rank, print_ in by_rank.items() if _is_failure(print_)}
    if failed:
        listed = "; ".join(f"rank {rank} {line}" for rank, line in failed.items())
        raise GroupMismatchError(f"a rank of the group could not shard its graph: {listed}")
    difference = first_difference(by_rank)
    if difference is not None:
        raise GroupMismatchError(
            f"ranks {list(group.ranks)} compiled different graphs, first difference at {difference}. All "
            "ranks of a group must run the same model with the same options and the same row counts."
        )


def report_failure(group: ShardGroup, error: Exception) -> None:
    """Bring ``error`` to peers that wait in ``agree_on_graph``; raises if one is gone."""
    if group.has_peers:
        _gather(group, Fingerprint((f"{_FAILED}{error}",)))


def _is_failure(print_: Fingerprint) -> bool:
    return bool(print_.lines) and print_.lines[0].startswith(_FAILED)


def _gather(group: ShardGroup, brought: Fingerprint) -> dict[int, Fingerprint]:
    mine = _encode(brought)
    buffers = [torch.empty_like(mine) for _ in group.ranks]
    try:
        dist.all_gather(buffers, mine, group=group.control)
    except RuntimeError as error:
        raise GroupMismatchError(
            f"rank {group.ranks[group.rank]} waited for ranks {list(group.ranks)} to compile the same graph "
            f"and lost one: {str(error).splitlines()[0]}. A peer died, compiled fewer graphs, or is slower "
            "than the `timeout` option."
        ) from error
    return {rank: _decode(buffer) for rank, buffer in zip(group.ranks, buffers, strict=True)}


def _encode(print_: Fingerprint) -> torch.Tensor:
    data = zlib.compress(json.dumps(print_.lines).encode())
    if len(data) > _BUFFER_BYTES - 4:
        data = zlib.compress(
            json.dumps([f"{len(print_.lines)} collectives, hash {zlib.crc32(data)}"]).encode()
        )
    framed = len(data).to_bytes(4, "big") + data
    return torch.frombuffer(bytearray(framed.ljust(_BUFFER_BYTES, b"\0")), dtype=torch.uint8)


def _decode(buffer: torch.Tensor) -> Fingerprint:
    framed = bytes(buffer.tolist())
    length = int.from_bytes(framed[:4], "big")
    return Fingerprint(tuple(json.loads(zlib.decompress(framed[4 : 4 + length]))))
