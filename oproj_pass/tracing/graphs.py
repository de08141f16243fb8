"""Runs a copy of a model once under Dynamo and hands each graph to a backend.

The copy shares the model's parameters and nothing else, so buffers, caches and attributes of the model, and
the caller's arguments, stay as they are. A model on ``meta`` runs on ``meta``.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import utils
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils._pytree import tree_map_only

from oproj_pass.errors import ConfigError, WeightReleasedError
from oproj_pass.tracing.graph_break import GraphBreak
from oproj_pass.tracing.isolation import isolated_compile
from oproj_pass.weights.memory_report import stored_tensors, unwrap
from oproj_pass.weights.released import Released


def capture_graphs(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], backend: Callable[..., Any]
) -> list[GraphBreak]:
    """Call ``model``, a copy, with ``backend`` compiling its graphs; returns every break, in order.

    Raises whatever the model raises.
    """
    with isolated_compile(backend) as compile_, _random_state_kept(model), torch.no_grad():
        try:
            compile_(_fresh(_call))(model, args, kwargs)
        except BackendCompilerFailed as failure:
            raise failure.inner_exception from None
        return [_describe(reason) for reason in utils.graph_break_reasons]


def module_of(model: Any) -> nn.Module:
    """The module to capture, the one behind it if ``model`` is compiled; ``ConfigError`` if it is none."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}, required: a torch.nn.Module")
    return unwrap(model)


def _call(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return model(*args, **kwargs)


def _fresh(function: Callable[..., Any]) -> FunctionType:
    """A function with a code object of its own: Dynamo keeps compiled code there, and it goes with it."""
    return FunctionType(function.__code__.replace(), globals(), function.__name__)


def copy_to_run(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[nn.Module, Sequence[Any], Mapping[str, Any]]:
    """A copy of the model and its arguments that shares the parameters, and nothing else.

    Raises ``ConfigError`` if ``model`` is no module or cannot be copied, ``WeightReleasedError`` if weights
    of it are already sharded.
    """
    model = module_of(model)
    for name, weight in stored_tensors(model):
        if isinstance(weight, Released):
            raise WeightReleasedError(
                f"{name} is already sharded, and its full weight is gone. Explain the model before its first "
                "compiled step; oproj_pass.shard_report says what sharding did to it."
            )
    return _copy(model, args, kwargs, {id(parameter): parameter for parameter in model.parameters()})


def copy_on_meta(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[nn.Module, Sequence[Any], Mapping[str, Any]]:
    """A copy of the model and its arguments that holds no values: every tensor of both is on ``meta``.

    Raises ``ConfigError`` if ``model`` cannot be copied.
    """
    on_meta = {id(tensor): _on_meta(tensor) for _, tensor in stored_tensors(model)}
    args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
    return _copy(model, args, kwargs, on_meta)


def _on_meta(tensor: Tensor) -> Tensor:
    if tensor.is_meta:
        return tensor
    empty = tensor.detach().to("meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def _copy(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], memo: dict[int, Tensor]
) -> tuple[nn.Module, Sequence[Any], Mapping[str, Any]]:
    """A deep copy in which ``memo`` has the stored tensors' stand-ins, by the identity of the originals."""
    try:
        return copy.deepcopy((model, args, kwargs), memo)
    except (TypeError, RuntimeError) as error:
        raise ConfigError(
            f"{type(model).__name__} or its arguments cannot be copied: {error}. A copy is run so that the "
            "model stays as it is: make that attribute or argument copyable (a __deepcopy__ that returns "
            "self is enough)."
        ) from error


@contextmanager
def _random_state_kept(model: nn.Module) -> Iterator[None]:
    devices = {parameter.device for parameter in model.parameters()}
    accelerators = [device for device in devices if device.type not in ("cpu", "meta")]
    kind = accelerators[0].type if accelerators else "cuda"
    with torch.random.fork_rng([device.index for device in accelerators], device_type=kind):
        yield


def _describe(reason: Any) -> GraphBreak:
    frame = reason.user_stack[-1] if reason.user_stack else None
    source = f"{frame.filename}:{frame.lineno}" if frame else ""
    return GraphBreak(reason.reason.splitlines()[0], source)
