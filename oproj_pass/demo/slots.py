"""A causal language model over slots of key-value cache, each slot at its own position.

Decides where a token's keys and values are kept and what it may attend to. The model's code stays
transformers'; which request sits in which slot is the scheduler's.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

NULL_SLOT = 0
"""Where pad rows write: rows that a runner fills with zeros must not reach a request's slot."""


class SlotDecoder(nn.Module):
    """One step of decode for several slots at once.

    Args:
        model: a causal language model of transformers, in evaluation mode.
        max_num_seqs: most requests at once; they take the slots 1 to ``max_num_seqs``.
        max_model_len: tokens that a slot holds.
    """

    def __init__(self, model: PreTrainedModel, max_num_seqs: int, max_model_len: int) -> None:
        super().__init__()
        config = model.config
        heads = config.num_key_value_heads
        shape = (config.num_hidden_layers, 1 + max_num_seqs, heads, max_model_len, config.head_dim)
        self.model = model
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.keys: Tensor
        self.values: Tensor
        self.register_buffer("keys", torch.zeros(shape, dtype=model.dtype, device=model.device))
        self.register_buffer("values", torch.zeros(shape, dtype=model.dtype, device=model.device))

    def forward(self, input_ids: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        """The next token's logits, [T, vocabulary], for one token of each of T slots.

        All inputs are [T], int64: the token, its position in its sequence, and the slot it belongs to.
        """
        reachable = torch.arange(self.max_model_len, device=positions.device) <= positions[:, None]
        cache = SlotCache(self.keys, self.values, slots, positions)
        # by position: releases of transformers differ in what they call the cache
        output = self.model(input_ids[:, None], reachable[:, None, None, :], positions[:, None], cache)
        return output.logits[:, 0]  # type: ignore[no-any-return]

    def copy_out(self, slot: int, num_tokens: int) -> Tensor:
        """The keys and values of a slot's first tokens, [2, layers, heads, num_tokens, head_dim]."""
        return torch.stack([self.keys[:, slot, :, :num_tokens], self.values[:, slot, :, :num_tokens]])

    def copy_in(self, slot: int, saved: Tensor) -> None:
        """Put back what ``copy_out`` returned, into any slot."""
        num_tokens = saved.shape[3]
        self.keys[:, slot, :, :num_tokens], self.values[:, slot, :, :num_tokens] = saved


class SlotCache(Cache):  # type: ignore[misc]
    """The cache of all layers, [layers, slots, heads, length, head_dim], as one step's rows see it."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Tensor, positions: Tensor) -> None:
        super().__init__(layers=[])
        self._keys, self._values = keys, values
        self._slots, self._positions = slots, positions

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep each row's token, [T, heads, 1, head_dim]; return its slot's, [T, heads, length, head_dim]."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._slots, :, self._positions] = key_states[:, :, 0]
        values[self._slots, :, self._positions] = value_states[:, :, 0]
        return keys[self._slots], values[self._slots]
