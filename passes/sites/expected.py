"""Whether as many sites were found as were asked for, and how what was found is listed in messages."""

from collections.abc import Sequence

from oproj_pass.errors import SiteMismatchError
from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.sites.attention_output import Projection


def require_expected(
    sites: Sequence[Projection], near_misses: Sequence[NearMiss], expected: int | None
) -> None:
    """Raise ``SiteMismatchError`` unless there are as many sites as were asked for, if a number was."""
    if expected is not None and len(sites) != expected:
        raise SiteMismatchError(
            f"expected_sites = {expected}, found {len(sites)}. "
            f"{listed('Found', sites)} {listed('Near misses', near_misses)}"
        )


def listed(title: str, items: Sequence[Projection | NearMiss]) -> str:
    """Sites or near misses as one sentence of a message."""
    lines = [f"{item.path}: {item.reason}" if isinstance(item, NearMiss) else item.path for item in items]
    return f"{title}: {'; '.join(lines) or 'none'}."
