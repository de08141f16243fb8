"""Whether as many sites were found as were asked for, and how what was found is listed in messages."""

from collections.abc import Mapping, Sequence

from oproj_pass.errors import SiteMismatchError
from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.sites.options import of_role
from oproj_pass.passes.sites.projection import Projection


def require_expected(
    sites: Sequence[Projection],
    near_misses: Sequence[NearMiss],
    expected: int | Mapping[str, int] | None,
) -> None:
    """Raise ``SiteMismatchError`` unless there are as many sites as were asked for, in all or by role."""
    if isinstance(expected, Mapping):
        for role, number in expected.items():
            _require(f"expected_sites of {role}", of_role(sites, role), of_role(near_misses, role), number)
    elif expected is not None:
        _require("expected_sites", sites, near_misses, expected)


def _require(
    option: str, sites: Sequence[Projection], near_misses: Sequence[NearMiss], expected: int
) -> None:
    if len(sites) != expected:
        raise SiteMismatchError(
            f"{option} = {expected}, found {len(sites)}. "
            f"{listed('Found', sites)} {listed('Near misses', near_misses)}"
        )


def listed(title: str, items: Sequence[Projection | NearMiss]) -> str:
    """Sites or near misses as one sentence of a message."""
    lines = [f"{item.path}: {item.reason}" if isinstance(item, NearMiss) else item.path for item in items]
    return f"{title}: {'; '.join(lines) or 'none'}."
