"""Which strategy shares a site: what the options say for its module or role, or what sends fewest bytes."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch.fx import Node

from oproj_pass.automatic_sizes import AUTO
from oproj_pass.backend.by_size import require_one_placement
from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from oproj_pass.passes import STRATEGIES, Axis, Projection, Site, Strategy, strategy_names
from oproj_pass.passes.shard import required_cuts
from oproj_pass.passes.sites.options import ROLE_TITLES, size_option
from oproj_pass.passes.sites.roles import ROLES, as_named
from oproj_pass.passes.strategies.grid import Grid
from oproj_pass.passes.strategies.token_sizes import token_sizes
from oproj_pass.passes.traffic import TokenSizes, splits

logger = logging.getLogger(__name__)


def strategies_of(
    sites: Sequence[Site], sizes: Mapping[str, int], config: OProjConfig
) -> dict[Node, Strategy[Any]]:
    """The strategy of each site, by its GEMM; raises ``ConfigError`` where it does not fit."""
    fitting = {site.node: fitting_strategies(site, sizes[site.role], config) for site in sites}
    automatic = [site for site in sites if named_strategy(site, config) == AUTO]
    _log_choices({site.path: _in_words(site, fitting[site.node], sizes, config) for site in automatic})
    return {node: strategies[0] for node, strategies in fitting.items()}


def fitting_strategies(site: Site, size: int, config: OProjConfig) -> list[Strategy[Any]]:
    """The strategies that may share a site over ``size`` ranks, above 1, that with the fewest bytes first.

    Raises ``ConfigError`` if there is none.
    """
    candidates = list(_candidates(site, named_strategy(site, config), size, config))
    refusals = [_refusal(site, strategy, size) for strategy in candidates]
    fitting = [strategy for strategy, refusal in zip(candidates, refusals, strict=True) if refusal is None]
    if not fitting:
        raise refusals[0] or AssertionError
    if len(fitting) == 1:
        return fitting
    token = _token(site, config)
    return sorted(fitting, key=lambda strategy: strategy.sent_nbytes(token, size))


def named_strategy(site: Site, config: OProjConfig) -> str:
    """The name that the options give a site's strategy, or the first that fits; raises if it does not fit.

    So it does where a size of the plan names another placement.
    """
    names = strategy_names(site)
    name = _configured(site, config) or names[0]
    require_one_placement(site, name, config)
    if name == AUTO and len(names) == 1:
        return names[0]
    if name != AUTO and name not in names:
        raise ConfigError(
            f"{site.path}: option strategy = {name!r} does not fit this {ROLE_TITLES[site.role]}. Those that "
            f"do: {', '.join(names)}."
        )
    return name


def as_configured(site: Site, config: OProjConfig) -> Site:
    """A site in two steps as its last GEMM alone, where the options name a strategy of single GEMMs."""
    name = _configured(site, config)
    return site if name == AUTO else as_named(site, name)


def _configured(site: Site, config: OProjConfig) -> str | None:
    """The name that the options give a site's strategy, None without one."""
    option = config.strategy
    if not isinstance(option, Mapping):
        return option if site.role == "oproj" else None
    globs = (name for glob, name in option.items() if glob not in ROLES and fnmatchcase(site.path, glob))
    return next(globs, option.get(site.role))


def mesh_of(strategy: Strategy[Any]) -> dict[Axis, int]:
    """Over how many ranks a strategy cuts an axis, where that are not all of them."""
    if not isinstance(strategy, Grid) or strategy.shape is None:
        return {}
    return dict(zip((Axis.K, Axis.H), strategy.shape, strict=True))


def _candidates(site: Site, name: str, size: int, config: OProjConfig) -> Iterator[Strategy[Any]]:
    for one in strategy_names(site) if name == AUTO else [name]:
        if one == Grid.name:
            yield from map(Grid, _shapes(site, size, config, asked_for=name != AUTO))
        else:
            yield STRATEGIES[one]


def _shapes(site: Site, size: int, config: OProjConfig, *, asked_for: bool) -> list[tuple[int, int]]:
    given = config.grid
    found = splits(size) if given is None else [given] if given[0] * given[1] == size else []
    if not found and asked_for:
        what = f"grid = {given} has {given[0] * given[1]} ranks" if given else "a grid has two sides above 1"
        raise ConfigError(
            f"{site.path}: strategy 'grid' does not fit {size_option(site.role)} = {size}: {what}. Choose "
            "another size, or another strategy."
        )
    return found


def _refusal(site: Site, strategy: Strategy[Any], size: int) -> ConfigError | None:
    try:
        required_cuts(site, strategy, size, mesh_of(strategy))
    except ConfigError as refusal:
        return refusal
    return None


def _in_words(
    site: Site, fitting: Sequence[Strategy[Any]], sizes: Mapping[str, int], config: OProjConfig
) -> str:
    """Every candidate with its bytes, the chosen one first."""
    token, size = _token(site, config), sizes[site.role]
    words = [f"{_title(strategy)} sends {strategy.sent_nbytes(token, size)} B" for strategy in fitting]
    return f"{words[0]} a token ({', '.join(words[1:]) or 'nothing else fits'})"


def _token(site: Site, config: OProjConfig) -> TokenSizes:
    """What a token brings to a site of a role with several strategies."""
    assert isinstance(site, Projection)
    return token_sizes(site, config.reduce_dtype)


def _title(strategy: Strategy[Any]) -> str:
    shape = strategy.shape if isinstance(strategy, Grid) else None
    return strategy.name if shape is None else f"{strategy.name} {shape}"


def _log_choices(words: Mapping[str, str]) -> None:
    for choice in dict.fromkeys(words.values()):
        paths = [path for path, other in words.items() if other == choice]
        logger.info("strategy = auto: %s; %d layers, the first is %s", choice, len(paths), paths[0])
