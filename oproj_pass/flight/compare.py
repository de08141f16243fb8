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
    """``number`` and ``name`` of the step, ``what`` in it, and what each rank did there, in words."""

    what: str
    name: str
    number: int
    by_rank: dict[int, str]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "runner": self.name,
            "agreement": self.number,
            "collective": self.what,
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
    """The first entry that is not the same on all ranks; None if there is none.

    Raises ``ConfigError`` if two records are of one rank, or have no entry in common.
    """
    by_rank = {record["rank"]: list(record["entries"]) for record in records}
    if len(by_rank) < len(records):
        raise ConfigError("two of the records are of the same rank: give one of each")
    aligned = _from_common_start(by_rank)
    for place in range(max(map(len, aligned.values()))):
        found = {rank: entries[place] if place < len(entries) else None for rank, entries in aligned.items()}
        if len({_sameness(entry) for entry in found.values()}) > 1:
            first = next(entry for entry in found.values() if entry is not None)
            told = {rank: _told(entry, aligned[rank]) for rank, entry in found.items()}
            return Difference(first["what"], first["name"], first["number"], told)
    return None


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
