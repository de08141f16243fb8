"""What the advisor found: an option for each N and strategy, and which of them to take.

Holds facts and derives what follows from them; how they look is ``text`` and ``page``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from oproj_pass.advisor.figures import Basis, Range
from oproj_pass.advisor.kv_cache import KVCache
from oproj_pass.advisor.memory import Memory
from oproj_pass.advisor.profile import Profile
from oproj_pass.advisor.published import Deviation
from oproj_pass.advisor.roles import RoleOption
from oproj_pass.advisor.sites import Site
from oproj_pass.advisor.step_time import Step
from oproj_pass.passes import NearMiss
from oproj_pass.passes.sites.options import size_option

__all__ = ["Advice", "Bought", "Option", "Recommendation", "Setting"]


@dataclass(frozen=True)
class Setting:
    """What was asked.

    ``batch``: tokens of a rank's step. ``captured``: the sizes of its graphs, the largest last.
    ``sequence_length``: tokens of a sequence, for how many fit. ``max_slowdown_ms``: what a step may cost.
    """

    batch: int
    captured: tuple[int, ...]
    framework: str
    sequence_length: int
    block_size: int
    max_slowdown_ms: float
    kv_cache_memory_bytes: int | None = None


@dataclass(frozen=True)
class Bought:
    """What freed bytes hold of the KV cache."""

    tokens: int
    sequences: int
    blocks: int
    kv_cache_memory_bytes: int | None


@dataclass(frozen=True)
class Option:
    """One N and one strategy.

    ``named``: what asks for the strategy, in the backend's options or for a size of a capture plan.
    ``steps``: the change of a step by its tokens. ``turns_at``: tokens from which a step is slower than
    without sharding, after it was faster; None if that does not happen.
    """

    size: int
    strategy: str
    named: Mapping[str, str]
    memory: Memory
    steps: Mapping[int, Step]
    turns_at: int | None
    is_default: bool

    @property
    def label(self) -> str:
        """`N=8 row`."""
        return f"N={self.size} {self.strategy}"

    @property
    def backend_options(self) -> dict[str, Any]:
        """What asks the backend for it."""
        return {size_option("oproj"): self.size, **self.named}

    def cuts_like(self, other: "Option") -> bool:
        """Whether each weight lies as it does with another option."""
        return self.size == other.size and self.named["strategy"] == other.named["strategy"]


@dataclass(frozen=True)
class Recommendation:
    """The option to take, None where none is worth it, and why, in one sentence.

    ``by_size``: for each captured size the option whose step is fastest, of those that cut alike.
    """

    option: Option | None
    reason: str
    by_size: Mapping[int, Option]


@dataclass(frozen=True)
class Advice:
    """The answer for one model on one kind of machine."""

    model: str
    profile: Profile
    setting: Setting
    sites: tuple[Site, ...]
    near_misses: tuple[NearMiss, ...]
    draft_layers: int
    cache: KVCache | None
    options: tuple[Option, ...]
    roles: tuple[RoleOption, ...]
    misfits: Mapping[int, str]
    deviations: tuple[Deviation, ...]
    recommendation: Recommendation

    def step(self, option: Option) -> Step:
        """The change of the step that was asked about."""
        return option.steps[self.setting.batch]

    def bought(self, option: Option) -> Bought | None:
        """What the net saving of an option holds; None without a cache to count."""
        if self.cache is None:
            return None
        nbytes, setting = max(option.memory.net_nbytes, 0), self.setting
        cache, limit = self.cache, setting.kv_cache_memory_bytes
        return Bought(
            tokens=cache.tokens(nbytes, setting.sequence_length, setting.block_size),
            sequences=nbytes // cache.sequence_nbytes(setting.sequence_length, setting.block_size),
            blocks=nbytes // cache.block_nbytes(setting.block_size),
            kv_cache_memory_bytes=None if limit is None else limit + option.memory.net_nbytes,
        )

    def break_even_layers(self, size: int) -> float | None:
        """Layers like the first site's from which more is freed than the communicator takes."""
        if not self.sites or not self.sites[0].saved_nbytes(size):
            return None
        return self.options[0].memory.communicator_nbytes / self.sites[0].saved_nbytes(size)

    def to_dict(self) -> dict[str, Any]:
        """The advice as JSON-ready values: bytes are integers, times milliseconds with their bounds."""
        chosen = self.recommendation.option
        return {
            "model": self.model,
            "machine": {"profile": self.profile.name, "title": self.profile.title},
            "setting": asdict(self.setting),
            "draft_layers": self.draft_layers,
            "options": [self._option(option) for option in self.options],
            "roles": [
                {
                    "role": role.role,
                    "size": role.size,
                    "sites": role.sites,
                    "full_nbytes": role.full_nbytes,
                    "saved_nbytes": role.saved_nbytes,
                    **_step(role.step),
                }
                for role in self.roles
            ],
            "misfits": {str(size): reason for size, reason in self.misfits.items()},
            "recommendation": {
                "oproj_tensor_parallel_size": chosen.size if chosen else 0,
                "strategy": chosen.strategy if chosen else None,
                "options": chosen.backend_options if chosen else {"oproj_tensor_parallel_size": 0},
                "reason": self.recommendation.reason,
                "strategies": {
                    str(n): dict(option.named) for n, option in self.recommendation.by_size.items()
                },
            },
            "deviations": [deviation.to_dict() for deviation in self.deviations],
            "sources": [
                {"figure": name, "basis": basis.value, "source": source}
                for name, source, basis in self.profile.figures()
            ],
            "sites": [
                {"path": site.path, "role": site.shape.role, "scheme": site.scheme, "nbytes": site.nbytes}
                for site in self.sites
            ],
            "near_misses": [asdict(miss) for miss in self.near_misses],
        }

    def _option(self, option: Option) -> dict[str, Any]:
        bought = self.bought(option)
        return {
            "oproj_tensor_parallel_size": option.size,
            "strategy": option.strategy,
            **asdict(option.memory),
            "net_nbytes": option.memory.net_nbytes,
            "break_even_layers": self.break_even_layers(option.size),
            "kv_cache": None if bought is None else asdict(bought),
            "turns_at_tokens": option.turns_at,
            "steps": {str(tokens): _step(step) for tokens, step in option.steps.items()},
        }


def _step(step: Step) -> dict[str, Any]:
    return {
        "difference_ms": _range(step.difference),
        "saved_ms": _range(step.saved),
        "exchange_ms": _range(step.exchange),
        "sent_nbytes": step.sent_nbytes,
        "bound": step.bound,
        "basis": sorted(basis.value for basis in {*step.basis, Basis.PREDICTED}),
    }


def _range(found: Range) -> dict[str, float]:
    return {
        "value": round(found.value, 4), "low": round(found.low, 4), "high": round(found.high, 4)
    }  # fmt: skip
