"""The serving deployment, in vLLM's own field names.

Decides what a well-formed deployment is (names and types); whether it may shard o_proj is for the rules. The
fine-grained sizes stay as written, because an unusable size is a finding of rule 1 beside all the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from oproj_pass.deployment import loaders
from oproj_pass.deployment.files import read_mapping
from oproj_pass.deployment.flatten import flatten, place_in_vllm, places
from oproj_pass.deployment.graph_mode import CompilationMode, CUDAGraphMode, effective_graph_mode, parse_mode
from oproj_pass.deployment.hf_config import model_facts
from oproj_pass.deployment.local_model import config_file
from oproj_pass.deployment.numbers import whole_number
from oproj_pass.errors import ConfigError
from oproj_pass.validation import wrong_fields

__all__ = ["Deployment"]


_Count = Annotated[int, BeforeValidator(whole_number), Field(ge=1)]
_CountOrZero = Annotated[int, BeforeValidator(whole_number), Field(ge=0)]
_GraphMode = Annotated[CUDAGraphMode, BeforeValidator(lambda value: parse_mode(CUDAGraphMode, value))]
_CompileMode = Annotated[CompilationMode, BeforeValidator(lambda value: parse_mode(CompilationMode, value))]


class Deployment(BaseModel):
    """One serving deployment.

    Every keyword is a field below, a field's `vllm serve` spelling, or one of vLLM's sections:
    `compilation_config` and `speculative_config` (flattened into the fields), `hf_config` (the model's
    config.json). `additional_config` and `kv_transfer_config` are kept whole. Sections may be JSON strings.
    Other engine arguments are accepted and not kept; any other name is an error with a suggestion.

    The defaults are those of vLLM's config classes. The server picks other `max_num_seqs` and
    `max_num_batched_tokens` by device, so state them, or read the deployment with `from_vllm`.

    Raises:
        ConfigError: an unknown name, or a value of the wrong type.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensor_parallel_size: _Count = 1
    data_parallel_size: _Count = 1
    pipeline_parallel_size: _Count = 1
    prefill_context_parallel_size: _Count = 1
    max_num_seqs: _Count = 128
    max_num_batched_tokens: _Count = 2048
    num_speculative_tokens: _CountOrZero = 0
    speculative_method: str | None = None
    enforce_eager: bool = False
    cudagraph_mode: _GraphMode | None = None
    cudagraph_capture_sizes: tuple[_Count, ...] | None = None
    max_cudagraph_capture_size: _CountOrZero | None = None
    compilation_mode: _CompileMode | None = None
    compilation_backend: str | None = None
    kv_transfer_config: dict[str, Any] | None = None
    additional_config: dict[str, Any] = Field(default_factory=dict)
    num_attention_heads: _Count | None = None
    head_dim: _Count | None = None
    hidden_size: _Count | None = None
    mlp_intermediate_sizes: tuple[_Count, ...] | None = None
    is_moe: bool | None = None
    device_type: str = "npu"

    _places: Mapping[str, tuple[str, ...]] = PrivateAttr(default_factory=dict)

    def __init__(self, **fields: Any) -> None:
        flat = flatten(fields, type(self).model_fields)
        try:
            super().__init__(**flat)
        except ValidationError as error:
            raise ConfigError(_describe(error)) from None
        self._places = places(fields)
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        """Refuse what vLLM itself refuses, so that a capture plan exists for every deployment."""
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, required: at least max_num_seqs "
                f"({self.max_num_seqs}), one token a request. Raise it or lower max_num_seqs."
            )
        sizes, ceiling = self.cudagraph_capture_sizes, self.max_cudagraph_capture_size
        if sizes and ceiling is not None and ceiling != max(sizes):
            raise ConfigError(
                f"max_cudagraph_capture_size is {ceiling}, required: the largest of cudagraph_capture_sizes "
                f"({max(sizes)}), or nothing. Give one of the two."
            )

    def __eq__(self, other: object) -> bool:
        """Whether both are the same deployment, in whatever spelling."""
        return isinstance(other, Deployment) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]

    def setting(self, name: str, value: Any) -> dict[str, Any]:
        """The part of a deployment that sets a field where this one states it, else where vLLM has it."""
        *sections, key = self._places.get(name) or place_in_vllm(name)
        found = {key: value}
        for section in reversed(sections):
            found = {section: found}
        return found

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Deployment:
        """Build a deployment from one mapping, in any spelling that the constructor takes."""
        return cls(**{str(name): value for name, value in fields.items()})

    @classmethod
    def from_file(cls, path: str | Path) -> Deployment:
        """Read a JSON or YAML file, or a shell script that runs `vllm serve`.

        Its `hf_config` or `model` may be a config.json, a model's folder, or a name in the local cache of the
        Hugging Face hub: the model's facts are read there.
        """
        return cls.from_dict(loaders.read_file(Path(path)))

    @classmethod
    def from_text(cls, text: str, source: str = "text") -> Deployment:
        """Read what a file would hold; `source` names it in messages."""
        return cls.from_dict(loaders.read_text(text, source))

    @classmethod
    def from_command(cls, words: Sequence[str]) -> Deployment:
        """Read a command line, `["vllm", "serve", model, ...]`."""
        return cls.from_dict(loaders.read_command(words))

    def with_model(self, hf_config: str | Path) -> Deployment:
        """This deployment of the model whose config.json, or folder, is given."""
        return self.model_copy(update=model_facts(read_mapping(config_file(Path(hf_config)))))

    @classmethod
    def from_vllm(cls, vllm_config: Any) -> Deployment:
        """Read a VllmConfig by attribute, without vLLM installed.

        Read it *after* the platform's `check_and_update_config`, which rewrites graph and compilation modes.
        """
        deployment = cls.from_dict(loaders.read_vllm_config(vllm_config))
        deployment._places = {}  # attributes, which is no place in a file
        return deployment

    @property
    def effective_cudagraph_mode(self) -> CUDAGraphMode:
        """The graph mode left after the rewrites of vLLM and of the platform."""
        return effective_graph_mode(
            self.cudagraph_mode,
            enforce_eager=self.enforce_eager,
            compilation_mode=self.compilation_mode,
            device_type=self.device_type,
        )

    @property
    def oproj_input_size(self) -> int | None:
        """K = num_attention_heads * head_dim, the input width of o_proj; None without model facts."""
        if self.num_attention_heads is None or self.head_dim is None:
            return None
        return self.num_attention_heads * self.head_dim


def _describe(error: ValidationError) -> str:
    lines = [f"{field} is {value!r}, {required}" for field, value, required in wrong_fields(error)]
    return "; ".join(lines) + ". Correct the value or remove the field."
