"""Where the flight records of several ranks first differ: the first step, and the collective in it.

Entries pair by what they are (runner, number, what), from the oldest that every record still holds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oproj_pass.errors import ConfigError

Entry = Mapping[str, Any]
_Key = tuple[str, str, int]


@dataclass(frozen=True)
class Difference:
    """``number`` and ``name`` of the step, ``what`` in it, and what each rank did there, in words.

    ``collective``: the first of the graph that one rank has begun and another has not.
    """

    what: str
    name: str
    number: int
    by_rank: dict[int, str]
    collective: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "runner": self.name,
            "agreement": self.number,
            "collective": self.what,
            "in_graph": self.collective,
            "ranks": {str(rank): found for rank, found in self.by_rank.items()},
        }


def read_record(path: Path) -> dict[str, Any]:
    """A written record. Raises ``ConfigError`` for a file that is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        _ = record["rank"], [_key(entry) for entry in record["entries"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a flight record: {type(error).__name__}: {error}") from error
    return dict(record)


def first_difference(records: Sequence[Mapping[str, Any]]) -> Difference | None:
    """The first entry that is not the same on all ranks, or the last one if its graph is; None if neither.

    Raises ``ConfigError`` if two records are of one rank, or have no entry in common.
    """
    by_rank = {record["rank"]: list(record["entries"]) for record in records}
    if len(by_rank) < len(records):
        raise ConfigError("two of the records are of the same rank: give one of each")
    aligned = _from_common_start(by_rank)
    collective = _first_collective(records)
    for place in range(max(map(len, aligned.values()))):
        found = {rank: entries[place] if place < len(entries) else None for rank, entries in aligned.items()}
        if len({_sameness(entry) for entry in found.values()}) > 1:
            return _difference(found, aligned, records, collective)
    if collective is None:
        return None
    return _difference({rank: entries[-1] for rank, entries in aligned.items()}, aligned, records, collective)


def _difference(
    found: Mapping[int, Entry | None],
    aligned: Mapping[int, Sequence[Entry]],
    records: Sequence[Mapping[str, Any]],
    collective: str | None,
) -> Difference:
    first = next(entry for entry in found.values() if entry is not None)
    graphs = {record["rank"]: record.get("graph") for record in records}
    told = {rank: _told(entry, aligned[rank]) + _told_of_graph(graphs[rank]) for rank, entry in found.items()}
    return Difference(first["what"], first["name"], first["number"], told, collective)


def _first_collective(records: Sequence[Mapping[str, Any]]) -> str | None:
    """In words; None where the ranks are as far as each other, or not in the same call of one graph."""
    graphs = [record["graph"] for record in records if record.get("graph")]
    if len(graphs) < len(records) or any(_call(graph) != _call(graphs[0]) for graph in graphs):
        return None
    least, most = (choose(graph["begun"] for graph in graphs) for choose in (min, max))
    lines = graphs[0]["collectives"]
    if least == most or not 0 <= least < len(lines):
        return None
    return f"collective {least + 1} of {len(lines)}, {lines[least]}"


def _call(graph: Mapping[str, Any]) -> tuple[int, Sequence[str]]:
    return graph["before"], graph["collectives"]


def _told_of_graph(graph: Mapping[str, Any] | None) -> str:
    if graph is None:
        return ""
    lines, begun = graph["collectives"], graph["begun"]
    last = f", the last {lines[begun - 1]}" if 0 < begun <= len(lines) else ""
    return f"; in its graph it has begun {begun} of {len(lines)} collectives{last}"


def _from_common_start(by_rank: Mapping[int, list[Entry]]) -> dict[int, list[Entry]]:
    keys = {rank: [_key(entry) for entry in entries] for rank, entries in by_rank.items()}
    in_all = set.intersection(*(set(found) for found in keys.values()))
    if not in_all:
        raise ConfigError(
            "the records have no entry in common: they are of other runs, or one rank went on long after"
        )
    return {
        rank: entries[next(place for place, key in enumerate(keys[rank]) if key in in_all) :]
        for rank, entries in by_rank.items()
    }


def _key(entry: Entry) -> _Key:
    return entry["what"], entry["name"], entry["number"]


def _sameness(entry: Entry | None) -> object:
    """Equal for entries of ranks that are in step: what each brought may differ, what came of it may not."""
    if entry is None:
        return None
    return _key(entry), entry["agreed"], entry["ended"] is None, entry["problem"] is None


def _told(entry: Entry | None, entries: Sequence[Entry]) -> str:
    if entry is None:
        last = f"; its last is {_named(entries[-1])}" if entries else ""
        return f"has not come there{last}"
    if entry["ended"] is None:
        return f"{_named(entry)}, brings {entry['brought']}: began and has not ended"
    took = f"{(entry['ended'] - entry['began']) * 1e3:,.1f} ms"
    outcome = entry["problem"] or (f"agreed {entry['agreed']}" if entry["agreed"] else "ended")
    return f"{_named(entry)}, brought {entry['brought']}: {outcome} after {took}"


def _named(entry: Entry) -> str:
    return f"{entry['what']} {entry['number']} of {entry['name']!r}" if entry["name"] else str(entry["what"])
