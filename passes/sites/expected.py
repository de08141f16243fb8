"""Whether as many sites were found as were asked for, and how what was found is listed in messages."""

from collections.abc import Mapping, Sequence

from oproj_pass.errors import SiteMismatchError
from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.sites.options import of_role
from oproj_pass.passes.sites.site import Site


def require_expected(
    sites: Sequence[Site],
    near_misses: Sequence[NearMiss],
    expected: int | Mapping[str, int] | None,
) -> None:
    """Raise ``SiteMismatchError`` unless there are as many sites as were asked for, in all or by role."""
    if isinstance(expected, Mapping):
        for role, number in expected.items():
            _require(f" of {role}", of_role(sites, role), of_role(near_misses, role), number)
    elif expected is not None:
        _require("", sites, near_misses, expected)


def _require(whose: str, sites: Sequence[Site], near_misses: Sequence[NearMiss], expected: int) -> None:
    if len(sites) != expected:
        raise SiteMismatchError(
            f"expected_sites{whose} = {expected}, found {len(sites)}. "
            f"{listed('Found', sites)} {listed('Near misses', near_misses)}"
        )


def listed(title: str, items: Sequence[Site | NearMiss]) -> str:
    """Sites or near misses as one sentence of a message."""
    lines = [f"{item.path}: {item.reason}" if isinstance(item, NearMiss) else item.path for item in items]
    return f"{title}: {'; '.join(lines) or 'none'}."
