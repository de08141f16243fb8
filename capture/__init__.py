"""Pure capture planning: no tensors, no torch."""

from oproj_pass.capture.bounds import StepBound
from oproj_pass.capture.histogram import Histogram, load_histogram
from oproj_pass.capture.padding import Padding, PaddingComparison
from oproj_pass.capture.plan import CapturePlan
from oproj_pass.capture.planner import plan_capture

__all__ = [
    "CapturePlan",
    "Histogram",
    "Padding",
    "PaddingComparison",
    "StepBound",
    "load_histogram",
    "plan_capture",
]
