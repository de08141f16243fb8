"""Leaves one model's stack of layers with two of each kind, so that equal layers are traced once.

1. Scan: the longest list of modules, and what each of its layers is: class, attributes, tensors, children.
2. Decide: layers of one description are one kind. A stack stays whole where no kind has three layers, or
   where a layer shares a tensor with anything outside it.
3. Shorten: the first and the last layer of each kind stay. Whoever traces compares the two, and has the first
   answer for the others; lists of the config with an entry a layer are shortened alike.

A layer's number is no part of its description; that its forward pass does not depend on the number is what
comparing the first and the last of a kind is for.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from oproj_pass.weights.memory_report import stored_tensors

__all__ = ["ShortenedStack", "shorten_stack"]

_NUMBERS = frozenset({"layer_idx", "layer_id", "layer_index", "layer_number"})
_INTERNALS = frozenset(nn.Module().__dict__)


@dataclass(frozen=True)
class ShortenedStack:
    """``path``: the list of layers; ``kinds``: the numbers of equal layers, one tuple a kind."""

    path: str
    kinds: tuple[tuple[int, ...], ...]

    @property
    def kept(self) -> list[int]:
        """The layers that stayed, in order."""
        return sorted({number for kind in self.kinds for number in (kind[0], kind[-1])})

    def number_of(self, path: str) -> int | None:
        """The layer that a module path leads into, None if it is not in the stack."""
        prefix = f"{self.path}."
        number = path.removeprefix(prefix).partition(".")[0] if path.startswith(prefix) else ""
        return int(number) if number.isdigit() else None

    def renumbered(self, path: str, number: int) -> str:
        """``path``, of some layer, in layer ``number``."""
        _, _, rest = path.removeprefix(f"{self.path}.").partition(".")
        return f"{self.path}.{number}.{rest}" if rest else f"{self.path}.{number}"


def shorten_stack(model: nn.Module) -> ShortenedStack | str:
    """Shorten the longest stack of ``model``, in place; where it stays whole, the reason."""
    path, stack = max(
        ((name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)),
        key=lambda named: len(named[1]),
        default=("", nn.ModuleList()),
    )
    if (shared := _shared_tensor(model, path)) is not None:
        return f"`{shared}` is shared between layers"
    kinds: dict[Hashable, list[int]] = {}
    for number, layer in enumerate(stack):
        kinds.setdefault(_describe(layer, number), []).append(number)
    if all(len(kind) < 3 for kind in kinds.values()):
        return "no three layers are equal"
    shortened = ShortenedStack(path, tuple(map(tuple, kinds.values())))
    model.set_submodule(path, nn.ModuleList(stack[number] for number in shortened.kept))
    for config in _configs(model):
        _shorten_config(config, len(stack), shortened.kept)
    return shortened


def _shared_tensor(model: nn.Module, path: str) -> str | None:
    """A stored tensor that two layers hold, or one and something outside."""
    owners: dict[int, tuple[str, str]] = {}
    for name, tensor in stored_tensors(model):
        inside = name.startswith(f"{path}.")
        layer = name.removeprefix(f"{path}.").partition(".")[0] if inside else ""
        _, known = owners.setdefault(id(tensor), (name, layer))
        if known != layer:
            return name
    return None


def _describe(module: nn.Module, number: int) -> Hashable:
    """All that tells a layer from another: equal for layers that compute alike with other weights."""
    attributes = tuple(
        (name, _value(value))
        for name, value in sorted(vars(module).items())
        if name not in _INTERNALS and not (name in _NUMBERS and value in (number, number + 1))
    )
    hooks = tuple(id(hook) for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()))
    tensors = tuple((name, _value(tensor)) for name, tensor in _own_tensors(module))
    children = tuple((name, _describe(child, number)) for name, child in module.named_children())
    return type(module), attributes, hooks, tensors, children


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor | None]]:
    yield from module._parameters.items()
    yield from module._buffers.items()


def _value(value: Any) -> Hashable:
    """A value as far as it matters; what is not plain is only equal to itself."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype, value.device, value.stride()
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device | Enum):
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_value, value))
    if isinstance(value, Mapping):
        return type(value), tuple((_value(key), _value(item)) for key, item in value.items())
    return id(value)


def _configs(model: nn.Module) -> Iterator[Any]:
    """The configurations that the model's modules read, each once."""
    found = {id(config): config for module in model.modules() if (config := getattr(module, "config", None))}
    return iter(found.values())


def _shorten_config(config: Any, layers: int, kept: list[int]) -> None:
    for name, value in list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == layers:
            setattr(config, name, type(value)(value[number] for number in kept))
        elif name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers") and value == layers:
            setattr(config, name, len(kept))
