"""The phases of a runner, which follow each other once."""

from enum import Enum


class Phase(Enum):
    """Where a runner is in its life."""

    WARMUP = "warmup"
    CAPTURE = "capture"
    SERVING = "serving"
