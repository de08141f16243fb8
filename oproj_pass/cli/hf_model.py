"""Builds a Hugging Face model from its config.json alone: on ``meta``, with no weights and no network."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oproj_pass.deployment.loaders import read_file
from oproj_pass.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

NUM_TOKENS = 4
"""Requests of the decode step that is captured, one token each; the report does not depend on it."""


def build_model(path: Path, dtype: str | None) -> "nn.Module":
    """The causal language model of a config.json, or of the folder that holds one, on ``meta``.

    ``dtype``: of the weights; by default the config's own, else bfloat16. Raises ``ConfigError`` where
    transformers is missing, does not know the config, or cannot build it.
    """
    if find_spec("transformers") is None:
        raise ConfigError("transformers is missing: pip install 'oproj-pass[hf]'")
    import torch  # noqa: PLC0415 - slow to load, and not needed to refuse
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM  # noqa: PLC0415

    path = path / "config.json" if path.is_dir() else path
    fields = read_file(path)
    kind = fields.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise ConfigError(
            f"{path}: model_type is {kind!r}, required: one that the installed transformers knows. "
            "A model with code of its own is explained with oproj_pass.explain(model, ...)."
        )
    fields.pop("quantization_config", None)  # its kernels need a device and weights
    try:
        config = CONFIG_MAPPING[kind].from_dict(fields).get_text_config(decoder=True)
        weights = getattr(torch, dtype) if dtype else config.dtype or torch.bfloat16
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=weights).eval()  # type: ignore[no-any-return]
    except Exception as error:  # whatever a config's and a model's own code raises
        raise ConfigError(f"{path}: transformers cannot build {kind!r}: {error}") from error


def decode_step() -> "dict[str, Any]":
    """Keyword arguments of one decode step."""
    import torch  # noqa: PLC0415

    input_ids: Tensor = torch.zeros(NUM_TOKENS, 1, dtype=torch.int64, device="meta")
    return {"input_ids": input_ids, "use_cache": False}
