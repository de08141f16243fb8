"""Options that may differ by role: one value for all roles, or a mapping from a role to its own."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Discriminator, Tag

from oproj_pass.errors import ConfigError
from oproj_pass.passes.sites.options import ROLE_TITLES, size_option
from oproj_pass.suggestion import suggestion

FINE_GRAINED = "finegrained_tp_config"
"""All sizes as one mapping, as vllm-ascend spells it in its ``additional_config``."""

_Value = TypeVar("_Value")


def _manner(option: Any) -> str:
    return "by role" if isinstance(option, Mapping) else "all"


AllOrByRole = Annotated[
    Annotated[_Value, Tag("all")] | Annotated[dict[str, _Value], Tag("by role")], Discriminator(_manner)
]
"""An option's type: one value, or several by role."""


def for_role(option: "_Value | Mapping[str, _Value]", role: str, otherwise: _Value) -> _Value:
    """What an option is for one role; ``otherwise`` where a mapping does not name it."""
    return option.get(role, otherwise) if isinstance(option, Mapping) else option


def require_roles(option: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` unless every key is a role."""
    for name in option:
        if name not in ROLE_TITLES:
            raise ValueError(f"roles as keys, not {name!r}: {suggestion(str(name), ROLE_TITLES)}")


def with_sizes_spelled_out(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the sizes of ``finegrained_tp_config`` as options of their own.

    A size that the mapping leaves out is 0, as it is in vllm-ascend, unless an option gives it. Raises
    ``ConfigError`` for a mapping that is none, a size that does not exist, and one that is given twice.
    """
    given, known = dict(options), [size_option(role) for role in ROLE_TITLES]
    section = given.pop(FINE_GRAINED, None)
    if section is None:
        return given
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"option {FINE_GRAINED} = {section!r}: required: a mapping such as {{'{known[0]}': 8}}"
        )
    for name in section:
        if name not in known:
            raise ConfigError(f"option {FINE_GRAINED} has no size {name!r}: {suggestion(str(name), known)}")
        if name in given:
            raise ConfigError(f"option {name} is given in {FINE_GRAINED} too: leave one of the two out")
    return dict.fromkeys(known, 0) | given | {name: value or 0 for name, value in section.items()}
