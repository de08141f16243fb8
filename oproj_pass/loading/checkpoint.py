"""A folder of safetensors files: what it holds, by tensor, and parts of it without the rest.

Judges the files and the index; whether the tensors fit a model is ``fit``'s.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor

from oproj_pass.errors import ConfigError

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class StoredEntry:
    """A tensor of a checkpoint, as the header of its file has it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def where(self) -> str:
        """This rank, the file and the tensor, for messages."""
        return f"{here(self.file)}: {self.name}"

    def read(self, *, dim: int = 0, start: int = 0, length: int | None = None) -> Tensor:
        """The tensor, or ``length`` indices of its dimension ``dim`` from ``start``.

        A view of the mapped file. The file is mapped anew for each tensor, so that pages of one tensor go
        before those of the next come. Raises ``ConfigError`` if the file cannot be read any more.
        """
        with _opened(self.file) as file:
            if length is None:
                return file.get_tensor(self.name)  # type: ignore[no-any-return]
            index = (*[slice(None)] * dim, slice(start, start + length))
            return file.get_slice(self.name)[index]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a folder, by name."""

    folder: Path
    entries: Mapping[str, StoredEntry]

    @classmethod
    def open(cls, folder: Path) -> "Checkpoint":
        """Read the headers of ``model.safetensors``, or of the files that its index lists.

        Raises ``ConfigError`` for a folder without them, a damaged or missing file, and a wrong index.
        """
        if (folder / _SINGLE).is_file():
            return cls(folder, {entry.name: entry for entry in _entries(folder / _SINGLE)})
        index = folder / _INDEX
        if not index.is_file():
            raise ConfigError(
                f"{here(folder)}: no {_SINGLE} and no {_INDEX} in it, required: a folder with one of them. A "
                "model's name on a hub has to be downloaded first; other formats have to be saved as "
                "safetensors."
            )
        files = _read_index(index)
        found = {entry.name: entry for file in sorted({*files.values()}) for entry in _entries(file)}
        for name, file in files.items():
            if name not in found or found[name].file != file:
                raise ConfigError(
                    f"{here(index)}: lists {name} in {file.name}, which does not hold it. The index and the "
                    "files belong to different checkpoints: download both again."
                )
        return cls(folder, found)


def here(path: Path) -> str:
    """This rank and a path, for messages: each rank may read another disk."""
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    return f"rank {rank}: {path}"


def _read_index(index: Path) -> dict[str, Path]:
    try:
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(name): index.parent / file for name, file in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{here(index)}: cannot be read as an index ({type(error).__name__}: {error}), required: JSON "
            "whose `weight_map` gives each tensor's file."
        ) from error


def _entries(path: Path) -> Iterator[StoredEntry]:
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            shape = tuple(file.get_slice(name).get_shape())
            yield StoredEntry(path, name, shape, file.get_tensor(name).dtype)  # mapped, not read


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{here(path)}: cannot be read as a safetensors file: {error}. It is missing, cut short or of "
            "another format: download or save it again."
        ) from error
