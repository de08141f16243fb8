"""The result of planning: which sizes are captured, what a step dispatches to, and why.

Holds and explains a decision; `planner.py` takes it.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from oproj_pass.capture import notebook
from oproj_pass.capture.bounds import StepBound
from oproj_pass.capture.checks import require_int
from oproj_pass.capture.padding import Padding, PaddingComparison
from oproj_pass.capture.platforms import PLATFORMS, require_platform
from oproj_pass.capture.size_strategy import (
    SizeStrategy,
    Strategies,
    in_words,
    require_one_placement,
    strategies_by_size,
)
from oproj_pass.errors import ConfigError


@dataclass(frozen=True, repr=False)
class CapturePlan:
    """The sizes to capture as device graphs for one deployment. Frozen, hashable and picklable.

    Attributes:
        bound: the scheduler limits the plan is judged against.
        platform: "npu" or "cuda", whose engine defaults applied.
        sizes: captured token counts, ascending; never above the largest possible decode step.
        reasons: for each size, in words, why it is there.
        padding: the plan beside its engine's own sizes; None if neither budget nor histogram was given.
        strategies: sizes whose graphs are written in a way of their own, with that; see `with_strategies`.

    Raises:
        ConfigError: the sizes are not a plan under `bound`, or name strategies that no plan can have.
    """

    bound: StepBound
    platform: str
    sizes: tuple[int, ...]
    reasons: tuple[str, ...]
    padding: PaddingComparison | None = None
    strategies: Strategies = ()

    def __repr__(self) -> str:
        covers = "covers every step" if self.covers else f"no graph above {self.max_size}"
        named = f", a strategy for {len(self.strategies)} of them" if self.strategies else ""
        return f"CapturePlan({self.platform}: {len(self.sizes)} sizes up to {self.max_size}, {covers}{named})"

    def _repr_html_(self) -> str:
        return notebook.to_html(self)

    def __post_init__(self) -> None:
        require_platform(self.platform)
        if not self.sizes:
            raise ConfigError("sizes=() captures nothing: a plan needs at least one size")
        for size in self.sizes:
            require_int("sizes", size, minimum=1)
        if list(self.sizes) != sorted(set(self.sizes)):
            raise ConfigError(f"sizes={self.sizes} must ascend without repeats")
        if self.max_size > self.bound.max_decode_tokens:
            raise ConfigError(
                f"sizes: {self.max_size} can never be dispatched, the largest possible decode step is "
                f"{_limit(self.bound)}"
            )
        if len(self.reasons) != len(self.sizes):
            raise ConfigError(f"reasons: {len(self.reasons)} given for {len(self.sizes)} sizes")
        if strays := [size for size, _ in self.strategies if size not in self.sizes]:
            captured = ", ".join(map(str, self.sizes))
            raise ConfigError(f"strategies: {in_words(strays)} not captured, the plan captures {captured}")
        require_one_placement(self.strategies)

    @property
    def max_size(self) -> int:
        """Largest captured size, vLLM's final `max_cudagraph_capture_size`."""
        return self.sizes[-1]

    @property
    def covers(self) -> bool:
        """Whether every possible decode step has a captured size."""
        return self.max_size >= self.bound.max_decode_tokens

    @property
    def warning(self) -> str | None:
        """What is not covered and the setting to raise; None if the plan covers."""
        if self.covers:
            return None
        largest = self.bound.max_decode_tokens
        return (
            f"largest captured size {self.max_size} is below the largest possible decode step "
            f"{_limit(self.bound)}: decode steps of {self.max_size + 1} to {largest} tokens would run eager. "
            f"Raise max_cudagraph_capture_size to {largest} (or add {largest} to cudagraph_capture_sizes)"
        )

    @property
    def widest_gap(self) -> tuple[int, int]:
        """The two neighbouring sizes (0 before the first) furthest apart: the steps that may pad most."""
        gaps = zip((0, *self.sizes), self.sizes, strict=False)
        return max(gaps, key=lambda gap: gap[1] - gap[0])

    @property
    def fingerprint(self) -> str:
        """What ranks must have in common of their strategies: each size with its own, as text; "" of none."""
        if not self.strategies:
            return ""
        named = {size: f": {strategy}" for size, strategy in self.strategies}
        return "; ".join(f"size {size}{named.get(size, '')}" for size in self.sizes)

    def with_strategies(
        self, strategies: Mapping[int, SizeStrategy | Mapping[str, Any] | str]
    ) -> "CapturePlan":
        """This plan, the graphs of some sizes written in a way of their own, and of no others.

        Args:
            strategies: for each such size the options that go before the backend's (`{"reduce": "exchange",
                "chunks": 4}`), or the name of a strategy. Sizes may differ in `reduce` and `chunks`; they
                share `strategy` and `grid`, since one weight has one placement.

        Raises:
            ConfigError: a size is not captured, an option does not exist, or two sizes name two placements.
        """
        return replace(self, strategies=strategies_by_size(strategies))

    def strategy_of(self, size: int) -> SizeStrategy:
        """What is named for a captured size; nothing by default."""
        return dict(self.strategies).get(size, SizeStrategy())

    def dispatch(self, num_tokens: int) -> int | None:
        """Smallest captured size of at least `num_tokens`; None, which is eager, above the largest.

        Raises:
            ConfigError: `num_tokens` is negative or not an integer.
        """
        require_int("num_tokens", num_tokens, minimum=0)
        index = bisect_left(self.sizes, num_tokens)
        return self.sizes[index] if index < len(self.sizes) else None

    def explain(self) -> list[str]:
        """The plan in words, one finding a line, then one line a size."""
        low, high = self.widest_gap
        lines = [
            f"largest possible decode step: {_limit(self.bound)} tokens",
            f"{len(self.sizes)} sizes up to {self.max_size}: "
            + (self.warning or "every possible decode step has a captured size"),
            f"widest gap: steps of {low + 1} to {high} tokens replay size {high}",
        ]
        if self.bound.speculative_depths:
            lengths = ", ".join(map(str, self.bound.query_lens))
            lines.append(f"depths change: a graph serves requests of {lengths} tokens")
        if self.padding is not None:
            lines += _explain_padding(self.padding, self.platform)
        width = len(str(self.max_size))
        return lines + [f"{size:{width}d}  {why}" for size, why in self.rows()]

    def rows(self) -> list[tuple[int, str]]:
        """Each size with why it is there, and what is named for it."""
        named = {size: f"; {strategy}" for size, strategy in self.strategies}
        reasons = zip(self.sizes, self.reasons, strict=True)
        return [(size, why + named.get(size, "")) for size, why in reasons]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON types; `max_size`, `covers` and `warning` follow from the rest."""
        return {
            "bound": self.bound.to_dict(),
            "platform": self.platform,
            "sizes": list(self.sizes),
            "reasons": list(self.reasons),
            "padding": None if self.padding is None else asdict(self.padding),
            "strategies": {str(size): strategy.to_dict() for size, strategy in self.strategies},
            "max_size": self.max_size,
            "covers": self.covers,
            "warning": self.warning,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "CapturePlan":
        """Rebuild a plan from `to_dict`; `strategies` may be left out.

        Raises:
            ConfigError: a field is missing, unknown or of the wrong kind, or a field that follows from the
                sizes contradicts them, as after an edit by hand.
        """
        try:
            plan = cls(
                bound=StepBound(**data["bound"]),
                platform=data["platform"],
                sizes=tuple(data["sizes"]),
                reasons=tuple(data["reasons"]),
                padding=_padding_from_dict(data["padding"]),
            ).with_strategies(data.get("strategies", {}))
        except KeyError as error:
            raise ConfigError(f"capture plan: field {error} is missing") from None
        except TypeError as error:
            raise ConfigError(f"capture plan: a field has the wrong form: {error}") from error
        expected = plan.to_dict()
        for field, value in data.items():
            if field not in expected:
                raise ConfigError(f"capture plan: unknown field {field!r}; known are {', '.join(expected)}")
            if field != "strategies" and value != expected[field]:
                raise ConfigError(
                    f"capture plan: {field}={value!r} contradicts the sizes, which give {expected[field]!r}. "
                    f"Plan again instead of editing a plan"
                )
        return plan


def _limit(bound: StepBound) -> str:
    return (
        f"{bound.max_decode_tokens} = min(max_num_batched_tokens {bound.max_num_batched_tokens}, "
        f"max_num_seqs {bound.max_num_seqs} x decode query length {bound.decode_query_len})"
    )


def _explain_padding(padding: PaddingComparison, platform: str) -> list[str]:
    lines = [f"expected padding: {padding.plan}"]
    if padding.default is not None:
        lines.append(f"  {PLATFORMS[platform].engine}'s own sizes: {padding.default}")
    if padding.even is not None:
        lines.append(f"  even sampling: {padding.even}")
    return lines


def _padding_from_dict(data: Mapping[str, Any] | None) -> PaddingComparison | None:
    if data is None:
        return None
    given = {name: data[name] for name in ("plan", "default", "even")}
    return PaddingComparison(**{name: value and Padding(**value) for name, value in given.items()})
