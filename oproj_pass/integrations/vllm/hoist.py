"""Output projections that a layer's operator calls inside itself, hoisted out to where a graph shows them.

vllm-ascend runs latent attention as one operator, from hidden states to projected output. Where the knob is
on, the implementation gets a pass-through for ``o_proj``, the operator's output becomes what the projection
reads, [T, heads * v_head_dim], and the layer calls the real projection on it. vLLM's own layer does so itself
and is left alone.

Decides which layers, by class, implementation and release; a known layer that differs in any is refused.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from torch import Tensor
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper

from oproj_pass.errors import ConfigError
from oproj_pass.integrations.vllm.hooks import wrap, wrap_constructions
from oproj_pass.integrations.vllm.settings import settings_of_model


@dataclass(frozen=True)
class Projecting:
    """What is known of a layer whose operator projects.

    ``releases`` of ``distribution``, post-releases included, and the ``implementations`` in which ``o_proj``
    is called once, last, on [T, heads * v_head_dim].
    """

    distribution: str
    releases: tuple[str, ...]
    implementations: frozenset[str]


KNOWN: dict[str, Projecting] = {
    "vllm_ascend.ops.mla.AscendMultiHeadLatentAttention": Projecting(
        "vllm-ascend", ("0.23.0",), frozenset({"vllm_ascend.attention.mla_v1.AscendMLAImpl"})
    ),
}


class PassThrough:
    """Stands in an implementation for the projection: called like it, returns what it was given."""

    def __init__(self, projection: Any) -> None:
        self.weight = projection.weight.new_empty(0)  # read where a prefetch could be asked for, and is not

    def __call__(self, attention: Tensor, **_: Any) -> tuple[Tensor, None]:
        """The input, and no bias that was left for later."""
        return attention, None


def install() -> None:
    """Wrap the construction of latent attention, vLLM's and every engine's own."""
    wrap_constructions(MultiHeadLatentAttentionWrapper, _constructing)


def _constructing(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        cls = type(self)
        known = KNOWN.get(_name_of(cls))
        is_complete = vars(cls).get("__init__") is __init__  # not the construction of its base
        if known is None or not is_complete:
            return
        vllm_config = get_current_vllm_config_or_none()
        settings = settings_of_model(vllm_config)
        if settings is not None and settings.sizes["oproj"] > 1:
            hoist(self, known, vllm_config)

    return __init__


def hoist(layer: Any, known: Projecting, vllm_config: Any) -> None:
    """Let ``layer`` call its projection after its operator; ``ConfigError`` where that may not fit."""
    if refusal := next(_refusals(layer, known, vllm_config.additional_config), None):
        raise ConfigError(
            f"{layer.prefix}.o_proj is called inside one operator, by {_name_of(type(layer))}: {refusal}, or "
            "set finegrained_tp_config.oproj_tensor_parallel_size to 0."
        )
    implementation = layer.mla_attn.impl
    layer.o_proj = implementation.o_proj
    implementation.o_proj = PassThrough(layer.o_proj)
    layer.hidden_size = implementation.num_heads * layer.v_head_dim  # the columns of the operator's output
    wrap(type(layer), "forward", _projecting)


def _projecting(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        output = original(self, *args, **kwargs)
        if not hasattr(self, "o_proj"):  # a draft's layer
            return output
        projected: Tensor = self.o_proj(output)[0]
        return projected

    return forward


def _refusals(layer: Any, known: Projecting, additional_config: Mapping[str, Any]) -> Iterator[str]:
    """Why the projection must stay where it is, each with what to do."""
    found, releases = version(known.distribution), ", ".join(known.releases)
    if found.partition(".post")[0] not in known.releases:
        yield f"it can be taken out of {known.distribution} {releases}, not of {found}. Install that release"
    implementation = layer.mla_attn.impl
    if (name := _name_of(type(implementation))) not in known.implementations:
        fitting = ", ".join(sorted(known.implementations))
        yield f"its implementation is {name}, required: {fitting}. Serve a model or a mode that uses it"
    if exchange := getattr(implementation.o_proj, "custom_op", None):
        yield (
            f"{type(exchange).__name__} exchanges its input already, required: nothing does. Turn that "
            "feature off, leave oproj_pass.load_sharded true"
        )
    if (additional_config.get("weight_prefetch_config") or {}).get("enabled"):
        yield "weight_prefetch_config.enabled would prefetch its weight there. Set it to false"
    if "o_proj" in (additional_config.get("layer_sharding") or ()):
        yield "layer_sharding moves its weight between ranks too. Take o_proj out of that list"


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
