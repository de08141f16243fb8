import json
from pathlib import Path

import pytest

from oproj_pass.capture import StepBound


class VllmRow:
    """One deployment that a real vLLM 0.32 configured, with what it computed."""

    def __init__(self, row):
        self.recorded = row
        self.limits = (
            row["max_num_seqs"],
            row["max_num_batched_tokens"],
            row["num_speculative_tokens"],
        )
        user = row.get("user", {})
        self.user = {
            "sizes": user.get("cudagraph_capture_sizes"),
            "max_size": user.get("max_cudagraph_capture_size"),
        }
        self.refused = "error" in row

    @property
    def bound(self):
        return StepBound(*self.limits)

    def list(self, column):
        return tuple(self.recorded[column])

    def ranges(self, column):
        return tuple((r, r) if isinstance(r, int) else tuple(r) for r in self.recorded[column])

    def __repr__(self):
        return f"{self.limits} {self.user}"


def _rows(part):
    path = Path(__file__).parent / "data" / "vllm_capture_sizes.json"
    return [VllmRow(row) for row in json.loads(path.read_text())[part]]


@pytest.fixture(scope="session")
def vllm_rows():
    """864 deployments with default capture settings."""
    return _rows("rows")


@pytest.fixture(scope="session")
def vllm_explicit_rows():
    """15 deployments whose user set sizes or a ceiling."""
    return _rows("explicit")
