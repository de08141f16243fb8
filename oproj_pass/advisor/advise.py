"""Advises for one model on one kind of machine: every N and strategy, then which of them.

Decides which options there are and when one is worth it; bytes and times come from `memory` and `step_time`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from oproj_pass.advisor.advice import Advice, Option, Recommendation, Setting
from oproj_pass.advisor.kv_cache import KVCache
from oproj_pass.advisor.memory import memory_of
from oproj_pass.advisor.profile import Profile
from oproj_pass.advisor.published import deviations
from oproj_pass.advisor.roles import role_options
from oproj_pass.advisor.sites import Scheme, Site, merged_shapes, sites_of
from oproj_pass.advisor.step_time import Step, step_difference
from oproj_pass.advisor.workload import EXCHANGES, Shape, Strategy
from oproj_pass.errors import ConfigError
from oproj_pass.explanation.report import ExplainReport

__all__ = ["advise", "fastest"]

SHOWN_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def advise(
    report: ExplainReport,
    profile: Profile,
    setting: Setting,
    *,
    sizes: Sequence[int] = (2, 4, 8),
    scheme: Scheme | None = None,
    cache: KVCache | None = None,
    draft_layers: int = 0,
) -> Advice:
    """The advice for the projections of ``report``.

    ``sizes``: the N to look at. ``scheme``: how the weights are stored, if not as the report says.

    Raises ``ConfigError`` where there is nothing to shard, or no size fits.
    """
    sites = sites_of((row for row in report.projections if row.role == "oproj"), scheme)
    if not sites:
        raise ConfigError(
            f"{report.model} has no output projection that can be sharded: `oproj explain` says why"
        )
    misfits = {size: reason for size in sizes if (reason := _misfit(sites, size))}
    if len(misfits) == len(sizes):
        raise ConfigError(
            f"{report.model} fits no size of {', '.join(map(str, sizes))}: {next(iter(misfits.values()))}"
        )
    fitting = [size for size in sizes if size not in misfits]
    options = tuple(option for size in fitting for option in _options(profile, sites, setting, size))
    return Advice(
        model=report.model,
        profile=profile,
        setting=setting,
        sites=tuple(sites),
        near_misses=report.near_misses,
        draft_layers=draft_layers,
        cache=cache,
        options=options,
        roles=tuple(
            role_options(
                report.projections,
                profile,
                sizes=sizes,
                tokens=setting.batch,
                scheme=scheme,
                framework=setting.framework,
            )
        ),
        misfits=misfits,
        deviations=deviations(profile.name),
        recommendation=_recommend(options, setting),
    )


def _misfit(sites: Iterable[Site], size: int) -> str | None:
    for site in sites:
        if not site.fits(size):
            units = "" if site.unit == 1 else f" in groups of {site.unit} features"
            return f"N = {size} does not divide K = {site.shape.in_features}{units} of {site.path}"
    return None


def _options(profile: Profile, sites: Sequence[Site], setting: Setting, size: int) -> Iterator[Option]:
    shapes = merged_shapes(sites)
    for number, strategy in enumerate(_available(shapes, size)):
        steps = {
            tokens: _step(profile, shapes, strategy, size, tokens, setting)
            for tokens in sorted({*SHOWN_TOKENS, *setting.captured, setting.batch})
        }
        yield Option(
            size=size,
            strategy=strategy.name,
            named=strategy.options,
            memory=memory_of(
                sites, strategy, size=size, tokens=setting.captured[-1],
                communicator_nbytes=int(profile.communicator_nbytes.value),
            ),
            steps=steps,
            turns_at=_turning_point(profile, shapes, strategy, size, setting, steps),
            is_default=number == 0,
        )  # fmt: skip


def _available(shapes: Sequence[Shape], size: int) -> list[Strategy]:
    """The strategies that can cut every shape.

    Of the ways to lay out a grid it is the one that sends the fewest bytes, which the backend takes.
    """
    fitting = [
        strategy for strategy in EXCHANGES["oproj"] if all(strategy.needs(shape, size) for shape in shapes)
    ]
    by_options: dict[tuple[tuple[str, str], ...], Strategy] = {}
    for strategy in sorted(fitting, key=lambda strategy: _sent_nbytes(shapes, strategy, size)):
        by_options.setdefault(tuple(strategy.options.items()), strategy)
    return [strategy for strategy in fitting if strategy in by_options.values()]


def _sent_nbytes(shapes: Iterable[Shape], strategy: Strategy, size: int) -> int:
    return sum(strategy.work(shape, 1, size).sent_nbytes * shape.count for shape in shapes)


def _step(
    profile: Profile, shapes: Iterable[Shape], strategy: Strategy, size: int, tokens: int, setting: Setting
) -> Step:
    return step_difference(profile, shapes, strategy, size=size, tokens=tokens, framework=setting.framework)


def _turning_point(
    profile: Profile,
    shapes: Sequence[Shape],
    strategy: Strategy,
    size: int,
    setting: Setting,
    steps: Mapping[int, Step],
) -> int | None:
    """Fewest tokens from which a step is slower than without sharding, after it was faster."""
    tokens = sorted(steps)
    slower = [steps[count].difference.value > 0 for count in tokens]
    turns = next((i for i in range(1, len(tokens)) if slower[i] and not slower[i - 1]), None)
    if turns is None:
        return None
    between = range(tokens[turns - 1], tokens[turns])
    found = bisect_left(
        between,
        True,
        key=lambda count: _step(profile, shapes, strategy, size, count, setting).difference.value > 0,
    )
    return between.start + found


def _recommend(options: Sequence[Option], setting: Setting) -> Recommendation:
    paying = [option for option in options if option.memory.net_nbytes > 0]
    if not paying:
        best = max(options, key=lambda option: option.memory.net_nbytes)
        saved, taken = best.memory.saved_nbytes, best.memory.saved_nbytes - best.memory.net_nbytes
        reason = (
            f"every N frees less than it takes: at best {best.label} frees {saved:,} bytes, and its "
            f"communicator and buffers take {taken:,}"
        )
        return Recommendation(None, reason, {})
    limit = setting.max_slowdown_ms
    affordable = [option for option in paying if _difference(option, setting) <= limit]
    if not affordable:
        cheapest = min(paying, key=lambda option: _difference(option, setting) / option.memory.net_nbytes)
        reason = (
            f"every N slows a step of {setting.batch} tokens down by more than {limit:g} ms. Where the "
            f"memory is worth it, {cheapest.label} costs least a byte: "
            f"{_difference(cheapest, setting):+.2f} ms for {cheapest.memory.net_nbytes / 2**30:.2f} GiB"
        )
        return Recommendation(None, reason, {})
    most = max(option.size for option in affordable)
    chosen = min(
        (option for option in affordable if option.size == most),
        key=lambda option: _difference(option, setting),
    )
    return Recommendation(chosen, _why(chosen, paying, setting), fastest(options, chosen, setting))


def _why(chosen: Option, paying: Sequence[Option], setting: Setting) -> str:
    step = chosen.steps[setting.batch]
    larger = [option for option in paying if option.size > chosen.size]
    reason = (
        f"it frees the most, {chosen.memory.net_nbytes / 2**30:.2f} GiB net, of all that change a step of "
        f"{setting.batch} tokens by at most {setting.max_slowdown_ms:+g} ms: {step.difference.value:+.2f} "
        f"ms, for {step.saved.value:.2f} ms of weight reads less and {step.exchange.value:.2f} ms of exchange"
    )
    if larger:
        next_ = min(larger, key=lambda option: _difference(option, setting))
        reason += f"; {next_.label} would cost {_difference(next_, setting):+.2f} ms"
    return reason


def fastest(options: Iterable[Option], chosen: Option, setting: Setting) -> dict[int, Option]:
    """For each captured size the option that steps fastest, of those that cut as ``chosen`` does.

    A capture plan may name these: one weight has one placement, whatever the size.
    """
    placed = [option for option in options if option.cuts_like(chosen)]
    return {
        tokens: min(placed, key=lambda option: option.steps[tokens].difference.value)
        for tokens in setting.captured
    }


def _difference(option: Option, setting: Setting) -> float:
    return option.steps[setting.batch].difference.value
