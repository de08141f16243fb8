"""Published measurements of the feature, and how far the time model is from each of them."""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from oproj_pass.advisor.figures import Source
from oproj_pass.advisor.profile import load_profile
from oproj_pass.advisor.step_time import step_difference
from oproj_pass.advisor.workload import EXCHANGES, Shape

__all__ = ["Deviation", "PublishedPoint", "deviations", "published_points"]


class PublishedPoint(BaseModel):
    """A step's published change, ``low`` to ``high`` ms, and the work it was measured on.

    ``used``: a constant of the machine's profile was computed from it, so its deviation proves nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    what: str
    machine: str
    role: str
    out_features: int
    in_features: int
    weight_itemsize: float
    input_itemsize: int
    partial_itemsize: int = 2
    kind: str
    first_products: int = 0
    count: int = Field(ge=1)
    size: int = Field(ge=2)
    tokens: int = Field(ge=1)
    low: float
    high: float
    used: bool = False
    note: str = ""
    source: Source

    @property
    def shape(self) -> Shape:
        """The work of the sites that were sharded."""
        return Shape(**{name: getattr(self, name) for name in Shape.__dataclass_fields__})


@dataclass(frozen=True)
class Deviation:
    """A published point and the prediction for it, in ms."""

    point: PublishedPoint
    predicted: float

    @property
    def error(self) -> float:
        """How far the prediction is outside what was published, in ms; 0 within."""
        return max(self.point.low - self.predicted, self.predicted - self.point.high, 0.0)

    @property
    def has_right_sign(self) -> bool:
        """Whether it says faster, slower or neither as the measurement does; below 0.05 ms is neither."""
        middle = (self.point.low + self.point.high) / 2
        return abs(middle) < 0.05 or (self.predicted > 0) == (middle > 0)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready values."""
        point = self.point
        return {
            "what": point.what, "machine": point.machine, "published_ms": [point.low, point.high],
            "predicted_ms": round(self.predicted, 3), "error_ms": round(self.error, 3),
            "right_sign": self.has_right_sign, "used": point.used, "note": point.note, "source": point.source,
        }  # fmt: skip


def published_points() -> tuple[PublishedPoint, ...]:
    """All points that the package knows."""
    text = files("oproj_pass.advisor").joinpath("published.json").read_text(encoding="utf-8")
    return tuple(map(PublishedPoint.model_validate, json.loads(text)))


def deviations(machine: str | None = None) -> tuple[Deviation, ...]:
    """The deviation of every point, or of one machine's, by that machine's profile."""
    points = [point for point in published_points() if machine in (None, point.machine)]
    return tuple(Deviation(point, _predict(point)) for point in points)


def _predict(point: PublishedPoint) -> float:
    strategy = EXCHANGES[point.role][0]
    profile = load_profile(point.machine)
    return step_difference(
        profile, [point.shape], strategy, size=point.size, tokens=point.tokens
    ).difference.value
