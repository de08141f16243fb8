"""What sharding did to a model: its memory, read from the storages themselves, and how steps exchange."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from torch import Tensor, nn

from oproj_pass.passes.sites.options import of_role
from oproj_pass.weights.released import Released
from oproj_pass.weights.shard import Shard


@dataclass(frozen=True)
class ShardedWeight:
    """One sharded weight on this rank; sizes in bytes.

    ``full_nbytes``: the full weight. ``shard_nbytes``: this rank's slice. ``left_nbytes``: what the full
    weight's own storage still holds. ``role``: what it is here for, joined by "+" if that is more than one.
    ``ranks``: how many hold a part of it.
    ``manners``: for the graphs that ran, the rows of a step (None: any number) and how they are exchanged.
    """

    path: str
    full_nbytes: int
    shard_nbytes: int
    left_nbytes: int
    role: str = "oproj"
    ranks: int = 1
    manners: tuple[tuple[int | None, str], ...] = ()

    @property
    def exchange(self) -> str:
        """The manners in words: ``1 to 64 rows: row, scatter; 512 rows: row, exchange, 4 chunks``."""
        manners: list[tuple[str, list[int | None]]] = []
        for rows, manner in self.manners:
            if not manners or manners[-1][0] != manner:
                manners.append((manner, []))
            manners[-1][1].append(rows)
        return "; ".join(f"{_in_words(rows)}: {manner}" for manner, rows in manners)


@dataclass(frozen=True, repr=False)
class ShardReport:
    """The sharded weights of a model on this rank. A weight that several modules share is listed once."""

    weights: tuple[ShardedWeight, ...]

    @property
    def full_nbytes(self) -> int:
        """Bytes of the full weights, before sharding."""
        return sum(weight.full_nbytes for weight in self.weights)

    @property
    def kept_nbytes(self) -> int:
        """Bytes this rank holds now: its slices, and anything left of the full weights."""
        return sum(weight.shard_nbytes + weight.left_nbytes for weight in self.weights)

    @property
    def freed_nbytes(self) -> int:
        """Bytes that went back to the allocator: (1 - 1/N) of the full weights, less any padding."""
        return self.full_nbytes - self.kept_nbytes

    @property
    def by_role(self) -> dict[str, "ShardReport"]:
        """The report of each role by itself."""
        roles = dict.fromkeys(weight.role for weight in self.weights)
        return {role: ShardReport(tuple(of_role(self.weights, role))) for role in roles}

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready values."""
        return {
            "full_nbytes": self.full_nbytes,
            "kept_nbytes": self.kept_nbytes,
            "freed_nbytes": self.freed_nbytes,
            "freed_nbytes_by_role": {role: report.freed_nbytes for role, report in self.by_role.items()},
            "weights": [vars(weight) for weight in self.weights],
        }

    def __repr__(self) -> str:
        return f"ShardReport({self._headline})"

    @property
    def _headline(self) -> str:
        return f"{len(self.weights)} sharded weights, {self.freed_nbytes / 2**20:.2f} MiB freed"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(weight.path)}</td><td>{weight.full_nbytes / 2**20:.3f}</td>"
            f"<td>{(weight.shard_nbytes + weight.left_nbytes) / 2**20:.3f}</td>"
            f"<td>{escape(weight.exchange)}</td></tr>"
            for weight in self.weights
        )
        head = "<tr><th>weight</th><th>full MiB</th><th>kept MiB</th><th>exchange</th></tr>"
        return f"<p>{self._headline}</p><table>{head}{rows}</table>"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(title=self._headline)
        table.add_column("weight")
        table.add_column("role")
        for header in ("full MiB", "kept MiB"):
            table.add_column(header, justify="right")
        table.add_column("exchange")
        for weight in self.weights:
            kept = weight.shard_nbytes + weight.left_nbytes
            sizes = f"{weight.full_nbytes / 2**20:.3f}", f"{kept / 2**20:.3f}"
            table.add_row(weight.path, weight.role, *sizes, weight.exchange)
        yield table


def shard_report(model: nn.Module) -> ShardReport:
    """The memory of a model's sharded weights on this rank; empty before the first compiled step."""
    shards: dict[Shard, str] = {}
    for name, weight in stored_tensors(unwrap(model)):
        if isinstance(weight, Released):
            shards.setdefault(weight.shard, name)
    return ShardReport(tuple(_measure(name, shard) for shard, name in shards.items()))


def stored_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer with its name, one that several modules share under each of its names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def unwrap(model: nn.Module) -> nn.Module:
    """The module behind a compiled one, whose names are the checkpoint's."""
    return getattr(model, "_orig_mod", model)


def _measure(name: str, shard: Shard) -> ShardedWeight:
    signature = shard.signature
    full = signature.shape.numel() * signature.dtype.itemsize
    ranks = shard.placement.holders.size
    manners = sorted(shard.manners.items(), key=lambda manner: manner[0] or 0)
    return ShardedWeight(name, full, shard.nbytes, shard.storage.nbytes(), shard.role, ranks, tuple(manners))


def _in_words(rows: Sequence[int | None]) -> str:
    if rows[0] is None:
        return "any number of rows"
    return f"{rows[0]} rows" if len(rows) == 1 else f"{rows[0]} to {rows[-1]} rows"
