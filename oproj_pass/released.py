"""A parameter whose full weight was released to rank-local shards.

The storage is empty and the class is changed, so that no operation can read the missing values: without the
class, ``p + 1`` or ``p.copy_`` on an emptied storage is a segmentation fault, and saving a state dict
silently writes a broken file. Metadata stays readable (Dynamo's guards read it), and writes reach the shard.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oproj_pass.eager import eager_cause
from oproj_pass.errors import ConfigError, EagerStepError, WeightReleasedError
from oproj_pass.groups import ShardGroup
from oproj_pass.passes.axes import part_of

_REMEDY = (
    "Use oproj_pass.full_state_dict(model) on every rank to gather full weights back, or compile with "
    "release_weights=False to keep them."
)


@dataclass(frozen=True)
class Layout:
    """Which part of a full weight a rank holds: ``dim`` is the summed dimension, split over ``group``."""

    dim: int
    group: ShardGroup

    def slice_of(self, full: Tensor) -> Tensor:
        """This rank's slice of a full weight, as a view."""
        return part_of(full, self.dim, self.group.rank, self.group.size)


@dataclass(eq=False)
class Shard:
    """This rank's slice of one weight, and what is known of the full one.

    ``signature`` is the full weight's shape, strides, type and device; ``storage`` its own storage, empty
    unless someone filled it again.
    """

    path: str
    layout: Layout
    tensor: Tensor
    signature: "Signature"
    storage: torch.UntypedStorage

    @property
    def nbytes(self) -> int:
        """Bytes of the slice, read from its storage."""
        return self.tensor.untyped_storage().nbytes()

    def write(self, full: Tensor) -> None:
        """Take this rank's slice of new full values, in place: the shard keeps its address."""
        if full.shape != self.signature.shape:
            raise ConfigError(
                f"{self.path}: new values have shape {tuple(full.shape)}, "
                f"the weight has {tuple(self.signature.shape)}"
            )
        self.tensor.copy_(self.layout.slice_of(full))

    def describe(self) -> str:
        """The layer, this rank and its slice, for messages."""
        group = self.layout.group
        return f"{self.path} (rank {group.ranks[group.rank]}, slice {group.rank + 1} of {group.size})"


class Signature(NamedTuple):
    """What a compiled graph relies on in a full weight."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, weight: Tensor) -> "Signature":
        """The signature of a full weight."""
        return cls(weight.shape, weight.stride(), weight.dtype, weight.device)


def _getters(*names: str) -> frozenset[Callable[..., Any]]:
    return frozenset(getattr(torch.Tensor, name).__get__ for name in names)


_METADATA = _getters(
    "shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad", "grad_fn",
    "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn",
    "is_xpu", "is_mps", "nbytes", "itemsize", "_version", "output_nr", "_base", "_backward_hooks",
) | {
    torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
    torch.Tensor.grad.__set__,  # type: ignore[union-attr]
    torch.Tensor.requires_grad_,
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.ndimension, torch.Tensor.numel, torch.Tensor.nelement,
    torch.Tensor.stride, torch.Tensor.element_size, torch.Tensor.storage_offset, torch.Tensor.is_contiguous,
    torch.Tensor.untyped_storage, torch.Tensor.is_floating_point, torch.Tensor.is_complex,
    torch.Tensor.get_device, torch.Tensor.is_inference, torch.Tensor.is_conj, torch.Tensor.is_neg,
    torch.Tensor._is_view, torch.Tensor._is_zerotensor, torch.Tensor.dim_order, torch.Tensor.__len__,
    torch.Tensor.__hash__, torch.is_floating_point, torch.is_complex, torch.numel,
}  # fmt: skip
_PROJECTIONS = {
    F.linear, torch.addmm, torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.addmm,
    torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.Tensor.t, torch.t, torch.Tensor.T.__get__,  # type: ignore[attr-defined]
    torch._int_mm, torch._scaled_mm, torch._scaled_mm_v2,
}  # fmt: skip
_GET_DATA, _SET_DATA = torch.Tensor.data.__get__, torch.Tensor.data.__set__  # type: ignore[attr-defined]


class Released(Tensor):
    """A parameter or buffer without values; its shard serves compiled graphs. Made only by ``store``."""

    shard: Shard

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Metadata passes, a write goes to the shard, anything else raises."""
        if torch.compiler.is_compiling() or func in _METADATA:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if func == _GET_DATA:  # so that ``p.data.copy_(new)`` is a write, and nothing else can read
            return args[0]
        if func in (_SET_DATA, torch.Tensor.copy_) and isinstance(args[0], Released):
            return _write(func, args[0], args[1])
        raise _refusal(func, next(_released((args, kwargs))).shard)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _refusal(torch.save, self.shard)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        shape, dtype = tuple(self.shard.signature.shape), self.shard.signature.dtype
        return f"{type(self).__name__}({self.shard.describe()}, shape={shape}, dtype={dtype})"


class ReleasedParameter(Released, nn.Parameter):
    """A released parameter."""


class _Buffer(Tensor):
    """A tensor whose subclasses return plain tensors, as those of ``nn.Parameter`` do."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class ReleasedBuffer(Released, _Buffer):  # type: ignore[misc]
    """A released buffer."""


def _write(func: Callable[..., Any], weight: Released, values: Tensor) -> Released | None:
    shard = weight.shard
    if isinstance(values, Released):
        raise _refusal(func, values.shard)
    found, required = (values.dtype, values.device), (shard.signature.dtype, shard.signature.device)
    if func is not torch.Tensor.copy_ and found != required:
        raise ConfigError(
            f"{shard.path}: cannot change a sharded weight from {required} to {found}: "
            "assign a new nn.Parameter to the module instead"
        )
    with torch.no_grad():
        shard.write(values)
    return weight if func is torch.Tensor.copy_ else None


def _refusal(func: Callable[..., Any], shard: Shard) -> EagerStepError | WeightReleasedError:
    is_operator = isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket)  # npu_quant_matmul
    if is_operator or func in _PROJECTIONS:
        return EagerStepError(
            f"{shard.describe()}: this projection is sharded and was about to run eager: {eager_cause()} "
            "An eager step may bring another token count than its peers and hang the collectives, so it is "
            "refused."
        )
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        name = func.__self__.__name__  # type: ignore[attr-defined]
    return WeightReleasedError(
        f"{shard.describe()}: `{name}` needs the full weight, which was released. {_REMEDY}"
    )


def _released(values: Any) -> Iterator[Released]:
    """The released weights among nested arguments."""
    if isinstance(values, Released):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _released(value)
    elif isinstance(values, Mapping):
        yield from _released(list(values.values()))
