"""The parameters and buffers of a model as places to fill: each tensor once, with all its names."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor, nn


@dataclass
class Place:
    """One stored tensor of a model, wherever modules share it.

    ``names``: in the model; ``tensor``: what is there before loading; ``is_saved``: whether checkpoints hold
    it, as they do no non-persistent buffer.
    """

    tensor: Tensor
    is_saved: bool = True
    names: list[str] = field(default_factory=list)
    owners: list[tuple[nn.Module, str]] = field(default_factory=list)

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter, and no buffer."""
        return isinstance(self.tensor, nn.Parameter)

    def fill(self, tensor: Tensor) -> None:
        """Put ``tensor`` in every place of it."""
        for module, name in self.owners:
            (module._parameters if self.is_parameter else module._buffers)[name] = tensor  # type: ignore[assignment]


def places_of(model: nn.Module) -> list[Place]:
    """Every place of a model, in its order."""
    places: dict[int, Place] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor in _own_tensors(module):
            place = places.setdefault(id(tensor), Place(tensor))
            place.is_saved &= name not in module._non_persistent_buffers_set
            place.names.append(f"{prefix}.{name}" if prefix else name)
            place.owners.append((module, name))
    return list(places.values())


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            yield name, tensor
