"""Where K lies in a loaded slice once a quantisation method has processed it, which may have turned it round.

By its shape, and of a square slice by its memory or its values: methods turn the same memory or copy it, some
into the very parameter that was loaded, whose ``input_dim`` then speaks of the layout before.
"""

import torch
from torch import Tensor


def dim_of_k(loaded: Tensor, processed: Tensor, input_dim: int) -> int | None:
    """The dimension of ``processed`` that is ``input_dim`` of ``loaded``, None where it cannot be told."""
    turned_dim = loaded.dim() - 1 - input_dim
    turned = loaded.permute(*reversed(range(loaded.dim())))
    if loaded.shape != turned.shape:
        return {loaded.shape: input_dim, turned.shape: turned_dim}.get(processed.shape)
    if input_dim == turned_dim:
        return input_dim if processed.shape == loaded.shape else None
    is_kept, is_turned = _shows(processed, loaded), _shows(processed, turned)
    if is_kept == is_turned:
        return None
    return input_dim if is_kept else turned_dim


def _shows(processed: Tensor, original: Tensor) -> bool:
    """Whether it is the same memory in the same order, or has the same values in memory of its own."""
    if processed.shape != original.shape or processed.dtype != original.dtype:
        return False
    if processed.data_ptr() == original.data_ptr():
        return processed.stride() == original.stride()
    return torch.equal(_comparable(processed), _comparable(original))


def _comparable(tensor: Tensor) -> Tensor:
    is_float8 = tensor.is_floating_point() and tensor.element_size() == 1
    return tensor.view(torch.uint8) if is_float8 else tensor
