"""What a node does to streams: the meaning that every compiler's spelling has in common."""

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Does(Enum):
    """What a mark stands for."""

    RECORD = "records"
    WAIT = "waits for"
    ENTER = "enters"
    EXIT = "leaves"


@dataclass(frozen=True)
class Mark:
    """``what`` is done to ``on``: an event that is recorded or awaited, or the stream that is entered."""

    what: Does
    on: Any = None
