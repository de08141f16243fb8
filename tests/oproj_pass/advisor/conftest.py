"""DeepSeek-V3's projections as an explain report, without tracing the model."""

import pytest

from oproj_pass.advisor.advice import Setting
from oproj_pass.explanation.report import ExplainReport, ProjectionRow

H, K = 7168, 16384


@pytest.fixture
def report():
    def build(layers=61, *, out_features=H, in_features=K, itemsize=2):
        rows = (
            ProjectionRow(
                f"model.layers.{i}.self_attn.o_proj", "linear", out_features, in_features, "bfloat16",
                "dense", out_features * in_features * itemsize, itemsize, 2,
            )
            for i in range(layers)
        )  # fmt: skip
        return ExplainReport("Decoder", "auto", tuple(rows), (), (), 1)

    return build


@pytest.fixture
def setting():
    def build(batch=24, **changed):
        values = {
            "captured": (8, batch), "framework": "vllm", "sequence_length": 4096, "block_size": 128,
            "max_slowdown_ms": 0.3,
        }  # fmt: skip
        return Setting(batch, **(values | changed))

    return build
