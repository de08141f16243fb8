"""A number with where it comes from: nothing else enters a prediction."""

from enum import Enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Basis", "Figure", "Range", "Source"]


class Basis(str, Enum):
    """How far a number can be trusted."""

    MEASURED = "measured"
    PUBLISHED = "published"
    SOLVED = "solved"  # computed from published results of the feature itself
    ASSUMED = "assumed"
    PREDICTED = "predicted"


Source = Annotated[str, Field(min_length=8)]
"""Where a number was published, or how it was measured: a sentence, never empty."""


class Figure(BaseModel):
    """One constant of a machine. ``low`` and ``high`` bound it where the sources differ."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float = Field(ge=0)
    low: float | None = Field(default=None, ge=0)
    high: float | None = Field(default=None, ge=0)
    basis: Basis
    source: Source

    @model_validator(mode="after")
    def _in_order(self) -> "Figure":
        if not self.range.low <= self.value <= self.range.high:
            raise ValueError(f"value {self.value} is not between low {self.low} and high {self.high}")
        return self

    @property
    def range(self) -> "Range":
        """The figure with its bounds."""
        low = self.value if self.low is None else self.low
        return Range(low, self.value, self.value if self.high is None else self.high)


class Range:
    """A likely value between two bounds. Sums and multiples are ranges; bounds add up as the worst case."""

    __slots__ = ("high", "low", "value")

    def __init__(self, low: float, value: float, high: float) -> None:
        self.low, self.value, self.high = low, value, high

    @classmethod
    def exact(cls, value: float) -> "Range":
        """A value without doubt."""
        return cls(value, value, value)

    @classmethod
    def within(cls, value: float, error: float) -> "Range":
        """A value that is off by at most the fraction ``error``."""
        return cls(value * (1 - error), value, value * (1 + error))

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, self.value + other.value, self.high + other.high)

    def __sub__(self, other: "Range") -> "Range":
        return Range(self.low - other.high, self.value - other.value, self.high - other.low)

    def __mul__(self, factor: float) -> "Range":
        return Range(self.low * factor, self.value * factor, self.high * factor)

    def __truediv__(self, other: "Range") -> "Range":
        return Range(self.low / other.high, self.value / other.value, self.high / other.low)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Range) and (self.low, self.value, self.high) == (
            other.low, other.value, other.high,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.low, self.value, self.high))

    def __repr__(self) -> str:
        return f"Range({self.low:g}, {self.value:g}, {self.high:g})"
