"""The last things this process did together with its peers: a ring in memory, written as JSON when asked.

An entry is begun before its rank may have to wait, and ended afterwards, so one without an end is where a
rank is stuck. Entries hold what they were given and are put in words only when written: noting one costs a
microsecond.
"""

import json
import logging
import os
import time
from collections import deque
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from oproj_pass.flight.graph_call import GraphCall

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "OPROJ_FLIGHT_DIR"
_LAST = 512


@dataclass(slots=True)
class Entry:
    """One thing a rank does with its peers.

    Attributes:
        what: ``agreement``, ``failure``, ``replay``; ``graph``, ``compiled``, ``call``: what ranks meet for.
        name: the runner; empty without one.
        number: the runner's agreement that it belongs to, or the meeting's own; equal on all ranks.
        brought: what this rank brought, any object that prints well.
        began: seconds since the epoch.
        ended: the same, None until then.
        agreed: what all ranks know afterwards, equal on all of them; any object that prints well.
        problem: why it ended in an error.
    """

    what: str
    name: str
    number: int
    brought: object
    began: float
    ended: float | None = None
    agreed: object = None
    problem: str | None = None

    def end(self, agreed: object = None) -> None:
        """It went well."""
        self.ended, self.agreed = time.time(), agreed

    def fail(self, problem: str) -> None:
        """It did not, and the record is written where one is wanted."""
        self.ended, self.problem = time.time(), problem
        FLIGHT.write(problem)

    def as_json(self) -> dict[str, Any]:
        """The entry in words."""
        return {
            "what": self.what,
            "name": self.name,
            "number": self.number,
            "brought": str(self.brought),
            "began": self.began,
            "ended": self.ended,
            "agreed": None if self.agreed is None else str(self.agreed),
            "problem": self.problem,
        }


class FlightRecord:
    """The last entries of one process. Threads may add at once: appending to a deque is atomic.

    ``graph_call``: of a compiled graph, the one that runs now, or that failed last.
    """

    def __init__(self, last: int = _LAST) -> None:
        self._entries: deque[Entry] = deque(maxlen=last)
        self._meetings, self._writes = count(), count()
        self.rank = 0
        self.graph_call: GraphCall | None = None

    def meet(self, what: str, brought: object) -> Entry:
        """Begin a meeting without a runner, numbered by how many there were, as on every rank."""
        return self.begin(what, "", next(self._meetings), brought)

    def begin(self, what: str, name: str, number: int, brought: object) -> Entry:
        """Note that this rank enters something in which it may wait for its peers."""
        entry = Entry(what, name, number, brought, time.time())
        self._entries.append(entry)
        return entry

    def as_json(self, reason: str) -> dict[str, Any]:
        """The record in words; ``reason``: why it is read."""
        call = self.graph_call  # which may end while another thread reads
        return {
            "rank": self.rank,
            "process": os.getpid(),
            "written": time.time(),
            "reason": reason,
            "graph": call.as_json() if call else None,
            "entries": [entry.as_json() for entry in tuple(self._entries)],
        }

    def write(self, reason: str) -> Path | None:
        """Write ``rank<N>.json`` into the folder that ``OPROJ_FLIGHT_DIR`` names; None where it names none.

        Never raises: it is called where something else has failed. The last reason's file remains.
        """
        folder = os.environ.get(FOLDER_VARIABLE)
        if not folder:
            return None
        path = Path(folder) / f"rank{self.rank}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # of this write alone: a signal's handler may write while another thread, or this one, does
            unfinished = path.with_suffix(f".{os.getpid()}.{next(self._writes)}.tmp")
            unfinished.write_text(json.dumps(self.as_json(reason), indent=1), encoding="utf-8")
            unfinished.replace(path)
        except OSError as error:
            logger.warning("the flight record cannot be written to %s: %s", path, error)
            return None
        logger.info("flight record written to %s: %s", path, reason)
        return path


FLIGHT = FlightRecord()  # of the process, which is one rank: what its runners and graphs do in their order
