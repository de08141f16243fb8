"""What a byte of freed memory holds of the KV cache, from a model's ``config.json`` alone.

Decides how many bytes one token takes in each layer, as vLLM's cache specifications do: full attention keeps
every token, a sliding window the last ones, MLA one latent vector instead of heads, a linear-attention or
convolution layer a state of fixed size, which is not counted.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oproj_pass.errors import ConfigError

__all__ = ["CacheLayer", "KVCache", "read_kv_cache"]

_SLIDING = frozenset({"sliding_attention", "chunked_attention", "local_attention"})
_FIXED = frozenset({"linear_attention", "mamba", "conv", "recurrent", "lightning", "linear"})
_INDEX_SCALE_NBYTES, _INDEX_GROUP = 4, 128


@dataclass(frozen=True)
class CacheLayer:
    """How one layer caches: bytes a token, and the window that bounds the tokens, if one does."""

    token_nbytes: int
    window: int | None = None

    def nbytes(self, tokens: int, block_size: int) -> int:
        """Bytes of a sequence of ``tokens``, in whole blocks."""
        kept = tokens if self.window is None else min(tokens, self.window)
        return math.ceil(kept / block_size) * block_size * self.token_nbytes


@dataclass(frozen=True)
class KVCache:
    """The layers that cache, and how many keep a state of fixed size instead."""

    layers: tuple[CacheLayer, ...]
    fixed_layers: int = 0

    @property
    def token_nbytes(self) -> int:
        """Bytes that one more token takes while no window is full."""
        return sum(layer.token_nbytes for layer in self.layers)

    def sequence_nbytes(self, tokens: int, block_size: int) -> int:
        """Bytes of one sequence of ``tokens``."""
        return sum(layer.nbytes(tokens, block_size) for layer in self.layers)

    def block_nbytes(self, block_size: int) -> int:
        """Bytes of one of vLLM's blocks.

        Layers that cache unlike are grouped by kind, as many layers in a group as the rarest kind has; one
        block is a page of every layer of a group, so a sequence takes blocks for each group.
        """
        counts = Counter(self.layers)
        group = min(counts.values())
        return max(layer.token_nbytes for layer in counts) * block_size * group

    def tokens(self, nbytes: int, length: int, block_size: int) -> int:
        """Tokens that ``nbytes`` hold in sequences of ``length``."""
        return nbytes * length // self.sequence_nbytes(length, block_size)


def read_kv_cache(config: Mapping[str, Any], itemsize: float = 2) -> KVCache:
    """The cache of a config's language model, with ``itemsize`` bytes a cached number.

    Raises ``ConfigError`` for a config that does not state its attention's sizes.
    """
    config = config.get("text_config") or config
    layers = _number_of_layers(config)
    if config.get("kv_lora_rank"):
        token = _latent(config, itemsize)
        return KVCache((CacheLayer(token),) * layers)
    token = _per_head(config, itemsize)
    kinds = _kinds(config, layers)
    window = config.get("sliding_window") or config.get("attention_chunk_size")
    cached = [CacheLayer(token, window if kind in _SLIDING else None) for kind in kinds if kind not in _FIXED]
    if not cached:
        raise ConfigError(f"layer_types = {sorted(set(kinds))}: no layer of these keeps a KV cache")
    return KVCache(tuple(cached), layers - len(cached))


def _latent(config: Mapping[str, Any], itemsize: float) -> int:
    latent = int((config["kv_lora_rank"] + config.get("qk_rope_head_dim", 0)) * itemsize)
    index = (
        config.get("index_head_dim") or 0
    )  # the sparse attention's own keys: one byte each, scales by group
    return latent + index + index // _INDEX_GROUP * _INDEX_SCALE_NBYTES


def _per_head(config: Mapping[str, Any], itemsize: float) -> int:
    heads = _first(config, "num_attention_heads", "n_head", "num_heads", "attention_heads")
    if heads is None:
        raise ConfigError(
            "the config states no attention sizes: num_attention_heads is missing. Required: the config.json "
            "of a language model, or the folder that holds one"
        )
    shared = _first(config, "num_key_value_heads", "num_kv_heads", "multi_query_group_num")
    kv_heads = 1 if config.get("multi_query") else shared or heads
    hidden = _first(config, "hidden_size", "n_embd", "d_model")
    head_dim = config.get("head_dim") or (hidden // heads if hidden else None)
    if head_dim is None:
        raise ConfigError("the config states neither head_dim nor hidden_size: a head's width is not known")
    return int(kv_heads * (head_dim + (config.get("v_head_dim") or head_dim)) * itemsize)


def _kinds(config: Mapping[str, Any], layers: int) -> Sequence[str]:
    if kinds := config.get("layer_types"):
        return [str(kind) for kind in kinds]
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if pattern and config.get("sliding_window"):
        return ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(layers)]
    interval = config.get("full_attention_interval")
    if interval:
        return ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(layers)]
    is_sliding = bool(config.get("sliding_window")) and config.get("use_sliding_window", True)
    return ["sliding_attention" if is_sliding else "full_attention"] * layers


def _number_of_layers(config: Mapping[str, Any]) -> int:
    layers = _first(config, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if layers is None:
        raise ConfigError("the config states no number of layers: num_hidden_layers is missing")
    return layers


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    return next((config[name] for name in names if config.get(name) is not None), None)
