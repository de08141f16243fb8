"""CPU reference kernels of Ascend's fused communication operators; a communicator is a c10d group's name.

Where torch_npu is absent, the operators themselves are defined with its schemas.
"""

import torch
from torch.distributed import _functional_collectives as funcol

from oproj_pass.passes.graph.process_groups import process_group

_SCHEMAS = {
    "npu_mm_reduce_scatter_base": (
        "(Tensor input, Tensor x2, str hcom, int world_size, *, str reduce_op='sum', Tensor? bias=None, "
        "Tensor? x1_scale=None, Tensor? x2_scale=None, int comm_turn=0, ScalarType? output_dtype=None, "
        "str? comm_mode=None) -> Tensor"
    ),
    "npu_all_to_all_matmul": (
        "(Tensor x1, Tensor x2, str hcom, int world_size, Tensor? bias=None, int[]? all2all_axes=None, "
        "bool all2all_out_flag=True, str? comm_mode=None) -> (Tensor, Tensor)"
    ),
    "npu_matmul_all_to_all": (
        "(Tensor x1, Tensor x2, str hcom, int world_size, Tensor? bias=None, int[]? all2all_axes=None, "
        "str? comm_mode=None) -> Tensor"
    ),
}
_LIBRARY = torch.library.Library("npu", "FRAGMENT")


def mm_reduce_scatter(x1, x2, hcom, world_size, **_):
    return funcol.wait_tensor(funcol.reduce_scatter_tensor(x1 @ x2, "sum", 0, process_group(hcom)))


def all_to_all_matmul(x1, x2, hcom, world_size, *_, **__):
    """The ranks' features join along the summed dimension: [BS, H] -> [BS/W, W*H] @ [W*H, N]."""
    parts = _exchange(x1, hcom).view(world_size, -1, x1.shape[1])
    joined = parts.permute(1, 0, 2).reshape(parts.shape[1], -1)
    return joined @ x2, joined


def matmul_all_to_all(x1, x2, hcom, world_size, *_, **__):
    """The ranks' rows join, each rank keeps its part of the columns: [BS, H1] @ [H1, H2] -> [W*BS, H2/W]."""
    product = x1 @ x2
    part = product.shape[1] // world_size
    packed = product.view(-1, world_size, part).permute(1, 0, 2).contiguous()
    return _exchange(packed.view(-1, part), hcom)


def _exchange(x, hcom):
    return funcol.wait_tensor(funcol.all_to_all_single(x.contiguous(), None, None, process_group(hcom)))


def _fused_shape(x1, x2, hcom, world_size, **_):
    return x1.new_empty(x1.shape[0] // world_size, x2.shape[1])


def register():
    """Define what is missing, once a process."""
    kernels = {
        "npu_mm_reduce_scatter_base": mm_reduce_scatter,
        "npu_all_to_all_matmul": all_to_all_matmul,
        "npu_matmul_all_to_all": matmul_all_to_all,
    }
    for name, kernel in kernels.items():
        defined = hasattr(torch.ops.npu, name)
        if not defined:
            _LIBRARY.define(name + _SCHEMAS[name])
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"npu::{name}", "CPU"):
            _LIBRARY.impl(name, kernel, "CPU")
    if not torch._C._dispatch_has_kernel_for_dispatch_key("npu::npu_mm_reduce_scatter_base", "Meta"):
        _LIBRARY.impl("npu_mm_reduce_scatter_base", _fused_shape, "Meta")
