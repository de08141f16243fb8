"""One decode step of vllm-ascend's own latent attention on CPU tensors; for processes over the CANN stub."""

import contextlib
import os
import types
from unittest.mock import patch

import torch
from torch import nn

from tests.vllm_ascend.support.kernels import reference_kernels, run_on_cpu

ROWS, HIDDEN, HEADS, RANK, NOPE, ROPE, VALUE, BLOCK = 3, 128, 4, 512, 128, 64, 128, 128
PREFIX = "model.layers.0.self_attn"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


class Projection(nn.Module):
    """A linear layer as vLLM's are: called, it returns a bias to add later, too."""

    def __init__(self, columns, rows):
        super().__init__()
        from vllm.model_executor.layers.linear import UnquantizedLinearMethod

        self.weight = nn.Parameter(torch.randn(rows, columns) / columns**0.5, requires_grad=False)
        self.quant_method = UnquantizedLinearMethod()

    def forward(self, x, **_):
        return nn.functional.linear(x, self.weight), None


class Norm(nn.RMSNorm):
    variance_epsilon = 1e-6


class Attention(nn.Module):
    """What of a DeepSeek layer is around the operator, with vllm-ascend's own inside."""

    def __init__(self):
        super().__init__()
        from vllm.model_executor.layers.mla import MLAModules
        from vllm_ascend.ops.mla import AscendMultiHeadLatentAttention

        torch.manual_seed(1)
        self.q_proj = Projection(HIDDEN, HEADS * (NOPE + ROPE))
        self.kv_a = Projection(HIDDEN, RANK + ROPE)
        self.kv_b = Projection(RANK, HEADS * (NOPE + VALUE))
        self.norm = Norm(RANK, eps=1e-6)
        self.o_proj = Projection(HEADS * VALUE, HIDDEN)
        modules = MLAModules(
            kv_a_layernorm=self.norm, kv_b_proj=self.kv_b, rotary_emb=None, o_proj=self.o_proj,
            fused_qkv_a_proj=None, kv_a_proj_with_mqa=self.kv_a, q_a_layernorm=None, q_b_proj=None,
            q_proj=self.q_proj, indexer=None, is_sparse=False, topk_indices_buffer=None,
        )  # fmt: skip
        self.mla_attn = AscendMultiHeadLatentAttention(
            HIDDEN, HEADS, (NOPE + ROPE) ** -0.5, NOPE, ROPE, VALUE, None, RANK, modules, prefix=PREFIX
        )
        self.mla_attn.mla_attn.process_weights_after_loading(torch.float32)

    def forward(self, positions, hidden_states):
        return hidden_states + self.mla_attn(positions, hidden_states)


@contextlib.contextmanager
def engine(folder, size, **additional):
    """The configuration of an engine whose knob the rules have resolved to ``size`` (0: off)."""
    os.environ.update(ENVIRONMENT)
    import vllm_ascend.ops  # noqa: F401  (in the order in which its modules can be imported)
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins
    from vllm_ascend.ascend_config import init_ascend_config

    load_general_plugins()
    run_on_cpu()
    vllm_config = EngineArgs(model=str(folder), load_format="dummy", dtype="float32").create_engine_config()
    init_ascend_config(vllm_config)
    vllm_config.additional_config = {**vllm_config.additional_config, **additional}
    if size:
        vllm_config.additional_config |= {
            "finegrained_tp_config": {"oproj_tensor_parallel_size": size}, "oproj_pass": {"rewrite": {}},
        }  # fmt: skip
    alone = types.SimpleNamespace(world_size=1, rank_in_group=0)
    with (
        set_current_vllm_config(vllm_config),
        patch.object(parallel_state, "_TP", alone),
        patch.object(parallel_state, "_DCP", alone),
        patch.object(parallel_state, "_PCP", alone),
        reference_kernels(),
    ):
        yield vllm_config


@contextlib.contextmanager
def decode_step(vllm_config):
    """The forward context of a step that decodes one token for each of ``ROWS`` requests."""
    from vllm.forward_context import set_forward_context
    from vllm_ascend.ascend_forward_context import _EXTRA_CTX
    from vllm_ascend.attention.attention_v1 import AscendAttentionState
    from vllm_ascend.attention.mla_v1 import AscendMLADecodeMetadata, AscendMLAMetadata

    lengths = [5 + row for row in range(ROWS)]
    table = torch.arange(ROWS)[:, None]
    angles = torch.randn(ROWS, 1, 1, ROPE, generator=torch.Generator().manual_seed(3))
    decode = AscendMLADecodeMetadata(
        input_positions=torch.tensor(lengths), block_table=table, seq_lens=torch.tensor(lengths),
        max_seq_lens=max(lengths), seq_lens_list=lengths, cos=angles.cos(), sin=angles.sin(),
    )  # fmt: skip
    metadata = AscendMLAMetadata(
        num_actual_tokens_pcp_padded=ROWS, num_actual_tokens=ROWS, query_start_loc=torch.arange(ROWS + 1),
        slot_mapping=table[:, 0] * BLOCK + torch.tensor(lengths) - 1, seq_lens=decode.seq_lens,
        seq_lens_cpu=decode.seq_lens, block_tables=table, num_decodes=ROWS, num_decode_tokens=ROWS,
        num_prefills=0, attn_state=AscendAttentionState.DecodeOnly, decode=decode,
    )  # fmt: skip
    caches = torch.Generator().manual_seed(2)
    (layer,) = vllm_config.compilation_config.static_forward_context.keys() - {f"{PREFIX}.attn"}
    vllm_config.compilation_config.static_forward_context[layer].mla_attn.kv_cache = (
        torch.randn(ROWS, BLOCK, 1, RANK, generator=caches),
        torch.randn(ROWS, BLOCK, 1, ROPE, generator=caches),
    )
    prefetch = types.SimpleNamespace(maybe_prefetch_mla_or_sla_weight_in_current_stream=lambda **_: None)
    with (
        set_forward_context({f"{PREFIX}.attn": metadata}, vllm_config, num_tokens=ROWS),
        patch("vllm_ascend.attention.mla_v1.get_weight_prefetch_method", lambda: prefetch),
        torch.inference_mode(),
    ):
        _EXTRA_CTX.num_tokens = ROWS
        yield


def inputs():
    """Positions [T] and hidden states [T, hidden]."""
    return torch.arange(ROWS), torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(4))
