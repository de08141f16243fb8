"""A parameter whose full weight was released to rank-local shards.

The storage is empty and the class is changed, so that no operation can read the missing values: without the
class, ``p + 1`` or ``p.copy_`` on an emptied storage is a segmentation fault, and saving a state dict
silently writes a broken file. Metadata stays readable (Dynamo's guards read it), writes reach the shard, and
a conversion to another type or device converts it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunctionSubclass
from torch.utils import _pytree as pytree

from oproj_pass.errors import ConfigError
from oproj_pass.weights.placement import Placement
from oproj_pass.weights.shard import Shard, Signature
from oproj_pass.weights.stand_in import FullValues, serving_reads
from oproj_pass.weights.storages import empty
from oproj_pass.weights.uses import (
    GET_DATA,
    METADATA,
    SET_DATA,
    collective_refusal,
    is_collective,
    is_conversion,
    refusal,
)

_WRITES = (SET_DATA, torch.Tensor.copy_)


class Released(Tensor):
    """A parameter or buffer without values; its shard serves compiled graphs."""

    shard: Shard

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Metadata passes, a write goes to the shard, a conversion converts it, anything else raises.

        Where someone serves reads (``stand_in``), everything but metadata and writes gets full values.
        """
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        if is_collective(func):
            raise collective_refusal(next(_released((args, kwargs))).shard)
        if func in METADATA:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        if func == GET_DATA:  # so that ``p.data.copy_(new)`` is a write, and nothing else can read
            return args[0]
        full_values = serving_reads()
        if full_values is not None and func not in _WRITES:
            return _with_full_values(func, args, kwargs, full_values)
        if args and isinstance(args[0], Released):
            if func in _WRITES:
                return _write(func, args[0], args[1])
            if is_conversion(func):
                return _converted(func, args[0], args[1:], kwargs)
        raise refusal(func, next(_released((args, kwargs))).shard)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise refusal(torch.save, self.shard)

    def _typed_storage(self) -> Any:
        """What multiprocessing sends to other processes, and older code saves."""
        raise refusal(torch.Tensor.storage, self.shard)

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


def release(weights: Sequence[Tensor], path: str, placement: Placement, role: str = "oproj") -> None:
    """Cut this rank's slice of weights that show the same values, empty them, and let the slice stand in."""
    first = weights[0]
    slice_, storage = dense(placement.part_of(first)), first.untyped_storage()
    shard = Shard(path, placement, slice_, Signature.of(first), storage, role)
    for weight in weights:
        _become_released(weight, shard)


def adopt(
    slice_: Tensor,
    placement: Placement,
    path: str,
    shape: Sequence[int],
    role: str = "oproj",
    *,
    buffer: bool = False,
) -> Released:
    """A released parameter, or buffer, whose shard is ``slice_`` itself, which may still be unloaded.

    For weights of which a rank only ever holds its part. It has the metadata of the full weight: its
    ``shape``, and the slice's order in memory.
    """
    order = slice_.dim_order()
    full = torch.empty_permuted(shape, order, dtype=slice_.dtype, device=slice_.device)  # never touched
    weight = full if buffer else nn.Parameter(full, requires_grad=False)
    signature, storage = Signature.of(weight), weight.untyped_storage()
    _become_released(weight, Shard(path, placement, slice_, signature, storage, role))
    return weight  # type: ignore[return-value]


def dense(slice_: Tensor) -> Tensor:
    """A copy of a slice in memory of its own, in the order of memory of the full weight."""
    with torch.inference_mode(False):  # an inference tensor could not be written to later
        return slice_.clone()


def _become_released(weight: Tensor, shard: Shard) -> None:
    """Last of all the class: by it, other threads go to the shard."""
    empty(weight)
    shard.storage = weight.untyped_storage()
    weight.shard = shard  # type: ignore[attr-defined]
    weight.__class__ = ReleasedParameter if isinstance(weight, nn.Parameter) else ReleasedBuffer


def _with_full_values(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], full_values: FullValues
) -> Any:
    shards = list(dict.fromkeys(weight.shard for weight in _released((args, kwargs))))
    full = dict(zip(shards, full_values(shards), strict=True))
    args, kwargs = pytree.tree_map_only(Released, lambda weight: full[weight.shard], (args, kwargs))
    return func(*args, **kwargs)


def _write(func: Callable[..., Any], weight: Released, values: Tensor) -> Released | None:
    if func is not torch.Tensor.copy_ and isinstance(values, Released):
        _take_over(weight, values)
        return None
    shard = weight.shard
    if isinstance(values, Released):
        raise refusal(func, values.shard)
    found, required = (values.dtype, values.device), (shard.signature.dtype, shard.signature.device)
    if func is not torch.Tensor.copy_ and found != required:
        raise ConfigError(
            f"{shard.path}: cannot change a sharded weight from {required} to {found}: "
            "assign a new nn.Parameter to the module instead"
        )
    with torch.no_grad():
        shard.write(values)
    return weight if func is torch.Tensor.copy_ else None


def _take_over(weight: Released, converted: Released) -> None:
    """``weight.data = converted``, as ``Module.to`` ends: the weight stands for the other's shard."""
    with DisableTorchFunctionSubclass():
        weight.data = converted
    weight.shard = converted.shard


def _converted(
    func: Callable[..., Any], weight: Released, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Released:
    """The weight in another type or on another device; itself where nothing changes."""
    shard = weight.shard
    with torch.inference_mode(False), torch.no_grad():
        tensor = func(shard.tensor, *args, **kwargs)
    if tensor is shard.tensor:
        return weight
    if not isinstance(tensor, Tensor) or tensor.is_meta:
        raise refusal(func, shard)
    is_buffer = not isinstance(weight, nn.Parameter)
    return adopt(tensor, shard.placement, shard.path, shard.signature.shape, shard.role, buffer=is_buffer)


def _released(values: Any) -> Iterator[Released]:
    """The released weights among nested arguments."""
    if isinstance(values, Released):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _released(value)
    elif isinstance(values, Mapping):
        yield from _released(list(values.values()))
