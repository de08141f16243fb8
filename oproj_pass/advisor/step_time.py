"""How much longer a step takes with sharding than without, in milliseconds, and what bounds it.

The difference of a site is its exchange and the product with a part of the weight, less the product with all
of it. Nothing overlaps, and no rank waits for a slower one, but for what a calibrated profile knows of it:
both are the deployment's, not the machine's.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from oproj_pass.advisor.collectives import Transfer, transfer_us
from oproj_pass.advisor.figures import Basis, Range
from oproj_pass.advisor.gemms import Product, product_us
from oproj_pass.advisor.profile import Profile
from oproj_pass.advisor.workload import Shape, Strategy, Work, unsharded

__all__ = ["Step", "step_difference"]

READS, LATENCY, BANDWIDTH = "weight reads", "latency", "bandwidth"


@dataclass(frozen=True)
class Step:
    """A step's change over all sites of one role, times in ms.

    ``saved``: what the products take less. ``exchange``: collectives, and kernels around them. ``started``:
    the part of the exchange that messages of no bytes would take too.
    """

    saved: Range
    exchange: Range
    started: float
    sent_nbytes: int
    basis: frozenset[Basis]

    @property
    def difference(self) -> Range:
        """How much longer the step takes; below 0, how much shorter."""
        return self.exchange - self.saved

    @property
    def bound(self) -> str:
        """What the difference follows from most: weight reads saved, or the links' latency or bandwidth."""
        if self.saved.value >= self.exchange.value:
            return READS
        return LATENCY if self.started >= self.exchange.value / 2 else BANDWIDTH

    def __add__(self, other: "Step") -> "Step":
        return Step(
            self.saved + other.saved,
            self.exchange + other.exchange,
            self.started + other.started,
            self.sent_nbytes + other.sent_nbytes,
            self.basis | other.basis,
        )


NO_CHANGE = Step(Range.exact(0.0), Range.exact(0.0), 0.0, 0, frozenset())


def step_difference(
    profile: Profile,
    shapes: Iterable[Shape],
    strategy: Strategy,
    *,
    size: int,
    tokens: int,
    framework: str = "vllm",
    between_us: float | None = None,
) -> Step:
    """The change of a step with ``tokens`` rows on each of ``size`` ranks; ``shapes`` of the strategy's role.

    ``framework``: whose GEMM tables apply where the profile has any. ``between_us``: what a rank computes
    between two sites besides their own products; by default as much as a decode layer does.
    """
    total = NO_CHANGE
    for shape in shapes:
        total = total + _site(
            profile,
            shape,
            strategy,
            size=size,
            tokens=tokens,
            framework=framework,
            between_us=between_us,
        )
    return total


def _site(
    profile: Profile,
    shape: Shape,
    strategy: Strategy,
    *,
    size: int,
    tokens: int,
    framework: str,
    between_us: float | None,
) -> Step:
    before, after = unsharded(shape, tokens), strategy.work(shape, tokens, size)
    whole, whole_basis = _products(profile, before.products, framework)
    parts, parts_basis = _products(profile, after.products, framework)
    behind_us = None if between_us is None else between_us + parts.value
    times = [transfer_us(profile, transfer, behind_us) for transfer in after.transfers]
    exchange = sum((time for time, _ in times), _copies(profile, after))
    started = sum(_started(profile, transfer, behind_us) for transfer in after.transfers)
    ms = shape.count / 1e3
    return Step(
        _difference(whole, parts) * ms,
        exchange * ms,
        started * ms,
        after.sent_nbytes * shape.count,
        whole_basis | parts_basis | {basis for _, basis in times},
    )


def _difference(whole: Range, parts: Range) -> Range:
    """Both products err alike (one bandwidth, one table), so the bounds of the two belong together."""
    low, high = whole.low - parts.low, whole.high - parts.high
    return Range(min(low, high), whole.value - parts.value, max(low, high))


def _products(
    profile: Profile, products: Iterable[Product], framework: str
) -> tuple[Range, frozenset[Basis]]:
    found = [product_us(profile, product, framework) for product in products]
    return sum((time for time, _ in found), Range.exact(0.0)), frozenset(basis for _, basis in found)


def _copies(profile: Profile, work: Work) -> Range:
    bandwidth = profile.memory_efficiency.range * (profile.memory_gbs.value * 1e3)
    return profile.kernel_us.range * work.kernels + Range.exact(work.copied_nbytes) / bandwidth


def _started(profile: Profile, transfer: Transfer, behind_us: float | None) -> float:
    if transfer.size == 1:
        return 0.0
    smallest = Transfer(transfer.collective, transfer.size, transfer.size)
    return transfer_us(profile, smallest, behind_us)[0].value
