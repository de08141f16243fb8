"""Which strategy shares a site: one for each role."""

from oproj_pass.passes import STRATEGIES, Projection, Strategy

_BY_ROLE = {"oproj": "row"}


def strategy_of(site: Projection) -> Strategy:
    """The strategy that shares a site of its role."""
    return STRATEGIES[_BY_ROLE[site.role]]
