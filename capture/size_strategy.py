"""What a plan names for the graph of one captured size: how its weights are cut and its rows exchanged.

Knows the options' names and forms; what they do, and whether a strategy of a name exists, is the backend's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from oproj_pass.capture.checks import require_int
from oproj_pass.errors import ConfigError
from oproj_pass.suggestion import suggestion

_AUTO = "auto"
_REDUCES = ("scatter", "exchange", _AUTO)
_EXAMPLE = {"reduce": "exchange", "chunks": 4}


@dataclass(frozen=True)
class SizeStrategy:
    """What a plan names for one size, by the backend's options; None leaves it to the option of that name.

    Attributes:
        strategy: how output projections are cut; with `grid` it is their placement, which all sizes share.
        grid: the shape (a, b) of the strategy "grid".
        reduce: how partial sums become one: "scatter", "exchange" or "auto".
        chunks: in how many parts the rows are exchanged, or "auto".

    Raises:
        ConfigError: a value has another form.
    """

    strategy: str | None = None
    grid: tuple[int, int] | None = None
    reduce: Literal["scatter", "exchange", "auto"] | None = None
    chunks: int | Literal["auto"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, str | None):
            raise ConfigError(f"strategy={self.strategy!r} must be the name of one strategy")
        if self.grid is not None:
            _require_grid(self.grid)
        if self.reduce not in (None, *_REDUCES):
            raise ConfigError(f"reduce={self.reduce!r} must be one of {', '.join(_REDUCES)}")
        if self.chunks not in (None, _AUTO):
            require_int("chunks", self.chunks, minimum=1)

    @classmethod
    def of(cls, named: "SizeStrategy | Mapping[str, Any] | str") -> "SizeStrategy":
        """What a user names for a size: the options of it, or the strategy alone."""
        if isinstance(named, cls):
            return named
        if isinstance(named, str):
            return cls(strategy=named)
        if not isinstance(named, Mapping):
            raise ConfigError(f"{named!r} must be the name of a strategy, or options such as {_EXAMPLE}")
        known = [field.name for field in fields(cls)]
        for name in named:
            if name not in known:
                raise ConfigError(f"unknown option {name!r}: {suggestion(str(name), known)}")
        grid = named.get("grid")
        return cls(**{**named, "grid": tuple(grid) if isinstance(grid, list) else grid})

    def __str__(self) -> str:
        """`reduce = exchange, chunks = 4`."""
        return ", ".join(f"{name} = {value}" for name, value in self.named.items())

    @property
    def named(self) -> dict[str, Any]:
        """The options that are named, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON types."""
        return {name: list(value) if name == "grid" else value for name, value in self.named.items()}


def _require_grid(grid: object) -> None:
    if not isinstance(grid, tuple) or len(grid) != 2:
        raise ConfigError(f"grid={grid!r} must be two numbers of ranks, (a, b)")
    for side in grid:
        require_int("grid", side, minimum=2)


Strategies = tuple[tuple[int, SizeStrategy], ...]
"""Sizes, ascending, each with what is named for it."""


def strategies_by_size(named: Mapping[Any, Any]) -> Strategies:
    """A user's mapping, or one that JSON kept; its sizes may be text, and one that names nothing goes.

    Raises `ConfigError` for what is no size, and for what is no strategy.
    """
    if not isinstance(named, Mapping):
        raise ConfigError(f"strategies={named!r} must be a mapping from sizes to options")
    found: dict[int, SizeStrategy] = {}
    for key, value in named.items():
        size = int(key) if isinstance(key, str) and key.isdecimal() else key
        require_int("strategies: size", size, minimum=1)
        if size in found:
            raise ConfigError(f"strategies: size {size} is named twice")
        try:
            found[size] = SizeStrategy.of(value)
        except ConfigError as error:
            raise ConfigError(f"strategies: size {size}: {error}") from None
    return tuple((size, found[size]) for size in sorted(found) if found[size].named)


def require_one_placement(strategies: Strategies) -> None:
    """Raise `ConfigError` if two sizes name two placements; of what a size leaves out the backend judges."""
    for option in ("strategy", "grid"):
        sizes: dict[Any, list[int]] = {}
        for size, named in strategies:
            if (value := getattr(named, option)) is not None:
                sizes.setdefault(value, []).append(size)
        if len(sizes) > 1:
            listed = " and ".join(f"{option} = {value!r} for {in_words(of)}" for value, of in sizes.items())
            raise ConfigError(
                f"strategies: {listed}: one weight has one placement, whatever the size. Name one {option} "
                "for all of them; sizes may differ in reduce and in chunks"
            )


def in_words(sizes: Iterable[int]) -> str:
    """`size 4`, or `sizes 4, 8`."""
    listed = [str(size) for size in sizes]
    return f"size{'s' * (len(listed) > 1)} {', '.join(listed)}"
