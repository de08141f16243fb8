"""The LM head, which vLLM runs outside of its compiled graph, on the sampled rows, and not on idle ranks.

``compute_logits`` of the model becomes a compiled graph of its own, which the ranks of a group enter together
once a step: its rows are always the most that a step can sample, and a rank without requests brings zeros.
What else would call it is refused: drafts of a model by rule 23, prompt logprobs when their request arrives.

Decides the rows and the calls. Where the weight is and how it is cut is the backend's.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.worker.worker_base import WorkerWrapperBase

from oproj_pass.errors import ConfigError, SiteMismatchError
from oproj_pass.integrations.vllm.backend import Sharding, head_options_of
from oproj_pass.integrations.vllm.hooks import FIRST_CALL, follow, wrap
from oproj_pass.integrations.vllm.metrics import ENGINE, refused_by_api_server
from oproj_pass.integrations.vllm.settings import Settings, settings_of
from oproj_pass.integrations.vllm.sizes import HEAD, in_words, sizes_of


def install() -> None:
    """Wrap a worker's first call, and the arrival of a request."""
    wrap(WorkerWrapperBase, FIRST_CALL, _equipping)
    wrap(InputProcessor, "process_inputs", _admitting)


def require_known_head(vllm_config: Any) -> None:
    """Raise ``ConfigError`` for an engine whose calls of the LM head are not the known ones."""
    if not (shared := in_words(sizes_of(vllm_config), [HEAD])):
        return
    remedies = {
        "model runner V2": (
            getattr(vllm_config, "use_v2_model_runner", False),
            "Set VLLM_USE_V2_MODEL_RUNNER=0",
        ),
        "the executor 'external_launcher', whose idle ranks run no dummy batch": (
            vllm_config.parallel_config.distributed_executor_backend == "external_launcher",
            "Use another distributed_executor_backend",
        ),
        "a model that samples nothing": (
            vllm_config.model_config.runner_type != "generate",
            "Serve it as it is",
        ),
    }
    for what, (is_so, remedy) in remedies.items():
        if is_so:
            raise ConfigError(
                f"finegrained_tp_config: {shared} with {what}: there the ranks of a group would not call the "
                f"LM head alike. {remedy}, or set the size to 0."
            )


class SharedHead:
    """One worker's LM head: every call of it, in one shape."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.shared = in_words(settings.of_head)
        self.rows: Tensor | None = None
        self.logits: Callable[..., Any] | None = None

    def take(self, model: Any) -> None:
        """Stand in for the model's ``compute_logits``."""
        if not hasattr(model, "compute_logits"):
            raise SiteMismatchError(
                f"{self.shared}, but {type(model).__name__} computes no logits. Set it to 0."
            )
        backend = Sharding(head_options_of(self.settings), ENGINE.head)
        self.logits = torch.compile(model.compute_logits, backend=backend, fullgraph=True, dynamic=False)
        model.compute_logits = self.compute_logits

    def compute_logits(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Logits [rows, vocabulary] of ``hidden_states`` [rows, hidden]."""
        count, capacity = len(hidden_states), self.settings.sampled_rows
        if count > capacity:
            raise ConfigError(
                f"{self.shared}: a call of the LM head brings {count} rows, and no step samples more than "
                f"{capacity} (max_num_seqs x (1 + num_speculative_tokens)). Raise max_num_seqs on all ranks."
            )
        if self.rows is None:
            self.rows = hidden_states.new_zeros(capacity, *hidden_states.shape[1:])
        self.rows[:count] = hidden_states
        self.rows[count:] = 0
        assert self.logits is not None
        logits: Tensor = self.logits(self.rows, *args, **kwargs)
        ENGINE.called_head(capacity)
        return logits[:count]

    def require_called(self) -> None:
        """Raise ``SiteMismatchError`` if the engine is about to serve and never called the LM head."""
        if self.rows is None:
            raise SiteMismatchError(
                f"{self.shared}, but the profile run of this engine computed no logits: the LM head is still "
                "whole. Set the size to 0."
            )

    @torch.inference_mode()  # as a real step does: compiled for another mode, it would be compiled again
    def join(self) -> None:
        """Call the LM head for a step that has no requests here."""
        assert self.rows is not None
        self.compute_logits(self.rows[:0])


def _equipping(original: Callable[..., None]) -> Callable[..., None]:
    def init_device(self: Any) -> None:
        settings = settings_of(self.vllm_config)
        if settings is not None and in_words(settings.of_head):
            _share_head(self.worker, SharedHead(settings))
        original(self)

    return init_device


def _share_head(worker: Any, head: SharedHead) -> None:
    follow(worker, "load_model", lambda: head.take(worker.get_model()))
    follow(worker, "execute_dummy_batch", head.join)
    follow(worker, "initialize_from_config", head.require_called)


def _admitting(original: Callable[..., Any]) -> Callable[..., Any]:
    def process_inputs(
        self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> Any:
        settings = settings_of(self.vllm_config)
        shared = in_words(settings.of_head) if settings is not None else ""
        if shared and (asked := getattr(params, "prompt_logprobs", None)) is not None:
            refused_by_api_server(self.vllm_config, "prompt_logprobs")
            raise ConfigError(
                f"request {request_id}: prompt_logprobs is {asked}, required: none with {shared}, since they "
                "are further calls of the LM head that the other ranks of its group do not make. Leave "
                "prompt_logprobs out."
            )
        return original(self, request_id, prompt, params, *args, **kwargs)

    return process_inputs
