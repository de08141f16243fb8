"""Builds a Hugging Face model from its config.json alone: on ``meta``, with no weights and no network."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oproj_pass.deployment.files import read_mapping
from oproj_pass.errors import ConfigError, OProjError

if TYPE_CHECKING:
    from torch import Tensor, nn

MISSING_TRANSFORMERS = (
    "transformers is missing: pip install 'transformers>=5,<6'; in a clone: pip install '.[hf]'"
)
NUM_TOKENS = 4
"""Requests of the decode step that is captured, one token each; the report does not depend on it."""


def config_file(path: Path) -> Path:
    """A config.json, given as the file or as the folder that holds it."""
    return path / "config.json" if path.is_dir() else path


def config_fields(path: Path) -> dict[str, Any]:
    """What a config.json says, given as the file or as the folder that holds it."""
    return read_mapping(config_file(path))


def require_transformers() -> None:
    """Raise ``ConfigError`` where transformers is missing."""
    if find_spec("transformers") is None:
        raise ConfigError(MISSING_TRANSFORMERS)


def build_model(path: Path, dtype: str | None) -> "nn.Module":
    """The causal language model of a config.json, or of the folder that holds one, on ``meta``.

    ``dtype``: of the weights; by default the config's own, else bfloat16. A quantisation is left out, for its
    kernels need a device and weights: whoever counts bytes reads it from the fields. Raises ``ConfigError``
    where transformers is missing, does not know the config, or cannot build it.
    """
    require_transformers()
    import torch  # noqa: PLC0415 - slow to load, and not needed to refuse
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM  # noqa: PLC0415

    fields = config_fields(path)
    kind = str(fields.get("model_type"))
    if kind not in CONFIG_MAPPING:
        raise ConfigError(
            f"{path}: model_type is {kind!r}, required: one that the installed transformers knows. "
            "A model with code of its own is explained with oproj_pass.explain(model, ...)."
        )
    fields.pop("quantization_config", None)
    with model_errors(path):
        config = CONFIG_MAPPING[kind].from_dict(fields).get_text_config(decoder=True)
        weights = getattr(torch, dtype) if dtype else config.dtype or torch.bfloat16
        with torch.device("meta"):
            model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=weights)
        return model.eval()


@contextmanager
def model_errors(path: Path) -> Iterator[None]:
    """Turn whatever a config's or a model's own code raises into a ``ConfigError``."""
    try:
        yield
    except OProjError:
        raise
    except Exception as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {error}") from error


def decode_step() -> "dict[str, Any]":
    """Keyword arguments of one decode step."""
    import torch  # noqa: PLC0415

    input_ids: Tensor = torch.zeros(NUM_TOKENS, 1, dtype=torch.int64, device="meta")
    return {"input_ids": input_ids, "use_cache": False}
