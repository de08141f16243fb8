"""A causal language model of transformers over packed rows of which each rank holds some."""

import torch

from oproj_pass.demo.slots import SlotCache, SlotDecoder


class ContextDecoder(SlotDecoder):
    """``context``: gives keys and values of all rows of the step."""

    def forward(self, input_ids, positions, slots, context):
        reachable = torch.arange(self.max_model_len) <= positions[:, None]
        cache = ContextCache(self.keys, self.values, slots, context)
        output = self.model(input_ids[:, None], reachable[:, None, None, :], positions[:, None], cache)
        return output.logits[:, 0]


class ContextCache(SlotCache):
    """Keeps the tokens of all rows, wherever they were computed; returns the slots of this rank's rows."""

    def __init__(self, keys, values, slots, context):
        super().__init__(keys, values, context["slots"], context["positions"])
        self._local_slots, self._context = slots, context

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        whole = self._context.whole(torch.stack((key_states, value_states)), dim=1)
        super().update(*whole, layer_idx)
        return self._keys[layer_idx][self._local_slots], self._values[layer_idx][self._local_slots]
