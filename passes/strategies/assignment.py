"""Which strategy a site was given, and over which ranks."""

from dataclasses import dataclass
from typing import Any

from oproj_pass.passes.sites.site import Site
from oproj_pass.passes.strategies.exchange import Exchange
from oproj_pass.passes.strategies.strategy import Strategy


@dataclass(frozen=True)
class Assignment:
    """How one site is shared: by which strategy, over which ranks."""

    site: Site
    strategy: Strategy[Any]
    exchange: Exchange
