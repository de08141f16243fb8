"""A machine as the time model knows it: memory, links, kernels, each number with its source.

Decides what a profile file may say, and refuses a number without a source. Reading times out of it is
``collectives`` and ``gemms``.
"""

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from oproj_pass.advisor.figures import Basis, Figure, Source
from oproj_pass.errors import ConfigError
from oproj_pass.suggestion import suggestion

__all__ = [
    "ANY_FRAMEWORK",
    "Collective",
    "CollectiveTable",
    "GemmTable",
    "Link",
    "Profile",
    "load_profile",
    "profile_names",
]

Collective = Literal["all_to_all", "reduce_scatter", "all_gather"]
ANY_FRAMEWORK = "torch"
"""Whose tables apply to every framework: times of plain torch, as `calibrate` takes them."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CollectiveTable(_Part):
    """Measured times of one collective.

    ``nbytes``: of one rank's buffer, input of an all_to_all and a reduce_scatter, output of an all_gather.
    ``us``: for each number of ranks, a time for each size. ``error``: mean error, as a fraction, of
    interpolating a size from the others. Ranks wait in a collective for the slower one, longer the more they
    did before: ``behind_us`` are times of what stood in front, the last of them in front of all of ``us``,
    and ``smallest_us``, by ranks, the smallest message behind each. Both are empty where that is not known.
    """

    nbytes: tuple[int, ...]
    us: dict[int, tuple[float, ...]]
    behind_us: tuple[float, ...] = ()
    smallest_us: dict[int, tuple[float, ...]] = {}
    error: float = Field(ge=0)
    basis: Basis = Basis.MEASURED
    source: Source

    @model_validator(mode="after")
    def _complete(self) -> "CollectiveTable":
        if list(self.nbytes) != sorted(set(self.nbytes)) or not self.us:
            raise ValueError("nbytes must ascend, and us must have a row for some number of ranks")
        if any(len(row) != len(self.nbytes) or min(row) <= 0 for row in self.us.values()):
            raise ValueError(f"every row of us must have {len(self.nbytes)} times above 0, one for each size")
        works = len(self.behind_us)
        if list(self.behind_us) != sorted(set(self.behind_us)) or (works and min(self.behind_us) <= 0):
            raise ValueError("behind_us must ascend, from above 0")
        if self.smallest_us.keys() != (self.us.keys() if works else set()):
            raise ValueError(
                "smallest_us must have a row for each number of ranks in us, and none without behind_us"
            )
        if any(len(row) != works or min(row) <= 0 for row in self.smallest_us.values()):
            raise ValueError(
                f"every row of smallest_us must have {works} times above 0, one for each of behind_us"
            )
        return self


class Link(_Part):
    """Times of collectives where no table is known: alpha(N) + bytes over bandwidth.

    alpha(N) = ``base_us`` + ``peer_us`` * (N - 1): each collective sets up its peers. ``gbs``: GB/s that one
    rank sends; with ``is_mesh`` to each peer, over a link of its own, else to all of them together.
    """

    base_us: Figure
    peer_us: Figure
    gbs: Figure
    is_mesh: bool = False


class GemmTable(_Part):
    """Measured times of ``[m, k] @ [k, n]`` in one type, by the kernels of one framework.

    ``kind``: ``16bit``, ``8bit``, ``8bit_block``. ``us``: times by m, then n, then k, k varying fastest.
    """

    kind: str
    framework: str
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    us: tuple[float, ...]
    error: float = Field(ge=0)
    source: Source

    @model_validator(mode="after")
    def _complete(self) -> "GemmTable":
        if len(self.us) != len(self.m) * len(self.n) * len(self.k):
            raise ValueError("us must have a time for every m, n and k")
        return self


class Profile(_Part):
    """One kind of machine.

    ``devices``: what torch calls the device, as substrings, for finding the profile of a running machine.
    ``memory_gbs`` and ``memory_efficiency``: peak bandwidth and the part of it that reading a weight reaches.
    ``tflops``: dense peak by kind, ``16bit`` at least. ``gemm_us``: what any GEMM takes. ``kernel_us``: one
    more small kernel in a replayed graph. ``communicator_nbytes``: device memory of one more communicator.
    """

    name: str
    title: str
    devices: tuple[str, ...] = ()
    ranks_a_node: int = Field(default=8, ge=1)
    memory_gbs: Figure
    memory_efficiency: Figure
    tflops: dict[str, Figure]
    gemm_us: Figure
    kernel_us: Figure
    communicator_nbytes: Figure
    link: Link | None = None
    collectives: dict[Collective, CollectiveTable] = {}
    gemms: tuple[GemmTable, ...] = ()

    @model_validator(mode="after")
    def _can_exchange(self) -> "Profile":
        if "16bit" not in self.tflops:
            raise ValueError("tflops has no 16bit: it stands in for types that are not listed")
        missing = {"all_to_all", "reduce_scatter", "all_gather"} - self.collectives.keys()
        if self.link is None and missing:
            raise ValueError(
                f"link is missing, and collectives have no table of {', '.join(sorted(missing))}"
            )
        return self

    def figures(self) -> Iterator[tuple[str, str, Basis]]:
        """Every number or table: its name, its source and its basis."""
        plain = ("memory_gbs", "memory_efficiency", "gemm_us", "kernel_us", "communicator_nbytes")
        for name in plain:
            figure: Figure = getattr(self, name)
            yield f"{name} = {figure.value:g}", figure.source, figure.basis
        for dtype, figure in self.tflops.items():
            yield f"tflops.{dtype} = {figure.value:g}", figure.source, figure.basis
        for name in ("base_us", "peer_us", "gbs") if self.link else ():
            figure = getattr(self.link, name)
            yield f"link.{name} = {figure.value:g}", figure.source, figure.basis
        for collective, table in self.collectives.items():
            yield f"collectives.{collective}", table.source, table.basis
        for gemms in self.gemms:
            yield f"gemms.{gemms.framework}.{gemms.kind}", gemms.source, Basis.MEASURED


def profile_names() -> list[str]:
    """The profiles that come with the package."""
    found = files("oproj_pass.advisor").joinpath("profiles").iterdir()
    return sorted(entry.name.removesuffix(".json") for entry in found if entry.name.endswith(".json"))


def load_profile(name: str | Path) -> Profile:
    """A profile by name, or from a JSON file of one's own.

    Raises ``ConfigError`` for a name that is neither, and for a file that is no profile: its message names
    every field at fault, such as a number without a ``source``.
    """
    if str(name) in profile_names():
        text = files("oproj_pass.advisor").joinpath("profiles", f"{name}.json").read_text(encoding="utf-8")
        return _parse(text, f"profile {name}")
    path = Path(name)
    if not path.is_file():
        known = profile_names()
        raise ConfigError(
            f"profile {str(name)!r} is neither a file nor one that is known: {suggestion(path.name, known)}"
        )
    return _parse(path.read_text(encoding="utf-8"), str(path))


def _parse(text: str, where: str) -> Profile:
    try:
        document: Any = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        faults = [_fault(dict(item)) for item in error.errors()]
        raise ConfigError(f"{where}: " + "; ".join(faults)) from None


def _fault(item: dict[str, Any]) -> str:
    where = ".".join(map(str, item["loc"]))
    if item["loc"] and item["loc"][-1] == "source":
        return f"{where}: a number without a source is not used; say who published or measured it"
    return f"{where}: {item['msg'].removeprefix('Value error, ')}" if where else item["msg"]
