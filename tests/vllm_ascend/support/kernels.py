"""References for the kernels that vllm-ascend's latent attention calls in a decode step, in plain PyTorch.

Shapes and meaning as in torch_npu's documentation of the operators of the same names.
"""

import contextlib
import functools
from unittest.mock import patch

import torch


def rotate_interleaved(x, cos, sin):
    """``npu_interleave_rope``: x [B, N, S, D], whose even and odd columns are the two halves to rotate."""
    halves = torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)
    first, second = halves.chunk(2, dim=-1)
    return halves * cos + torch.cat([-second, first], dim=-1) * sin


def store_keys(kv, gamma, cos, sin, index, k_cache, ckv_cache, *, c_kv_scale=None, epsilon, cache_mode):
    """``npu_kv_rmsnorm_rope_cache``, cache mode PA: kv [B, 1, 1, rank + rope], into both caches."""
    assert (c_kv_scale, cache_mode) == (None, "PA")
    latent, rope = kv.flatten(0, 2).split([len(gamma), kv.shape[-1] - len(gamma)], dim=-1)
    normed = torch.nn.functional.rms_norm(latent, gamma.shape, gamma, epsilon)
    rotated = rotate_interleaved(rope[:, None, None], cos, sin)
    k_cache.view(-1, rope.shape[-1])[index] = rotated.flatten(0, 2)
    ckv_cache.view(-1, len(gamma))[index] = normed
    return k_cache, ckv_cache, None, None


def attend(q, k, v, *, query_rope, key_rope, block_table, actual_seq_kvlen, softmax_scale, input_layout, **_):
    """``npu_fused_infer_attention_score_v2``, layout BNSD_NBSD: q [B, N, 1, rank] over a paged cache."""
    assert input_layout == "BNSD_NBSD"
    results = []
    for row, length in enumerate(actual_seq_kvlen):
        latent = k[block_table[row]].flatten(0, 2)[:length]
        keys = torch.cat([latent, key_rope[block_table[row]].flatten(0, 2)[:length]], dim=-1)
        queries = torch.cat([q[row], query_rope[row]], dim=-1).squeeze(1)
        results.append(torch.softmax(queries @ keys.T * softmax_scale, dim=-1) @ latent)
    return torch.stack(results, dim=1)[:, :, None], None  # [N, B, 1, rank]


def batch_matmul(x, weight, *, perm_y):
    """``npu_transpose_batchmatmul``: x [N, B, L] by weight [N, L, V], its result permuted."""
    return torch.bmm(x, weight).permute(perm_y)


@contextlib.contextmanager
def reference_kernels():
    """Let vllm-ascend call these instead of a device's."""
    import torch_npu

    kernels = {
        "npu_format_cast": lambda tensor, _: tensor,
        "npu_interleave_rope": rotate_interleaved,
        "npu_kv_rmsnorm_rope_cache": store_keys,
        "npu_fused_infer_attention_score_v2": attend,
        "npu_transpose_batchmatmul": batch_matmul,
    }
    with patch.multiple(torch_npu, **kernels):
        yield


@functools.cache
def run_on_cpu():
    """Give vllm-ascend's own operators, which are registered for NPUs alone, to the CPU too."""
    from vllm_ascend.ops import mla, register_custom_ops

    torch.library.impl("vllm::mla_forward", "CPU", mla.mla_forward)
    gather = register_custom_ops._maybe_all_gather_and_maybe_unpad_impl
    torch.library.impl("vllm::maybe_all_gather_and_maybe_unpad", "CPU", gather)
