"""The sizes of ``additional_config.finegrained_tp_config`` by role: which are this plugin's, which are on.

vllm-ascend reads the same section for layers of its own. Where it is installed, only the attention output
projection is this plugin's, and that where it is asked for.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from vllm.platforms import current_platform

from oproj_pass.automatic_sizes import AUTO
from oproj_pass.passes.sites.options import ROLE_TITLES, size_option

SECTION = "finegrained_tp_config"
HEAD = "lmhead"
_OFF = (None, 0, "0")


def on_vllm_ascend() -> bool:
    """Whether vllm-ascend is the platform."""
    return type(current_platform).__module__.partition(".")[0] == "vllm_ascend"


def own_roles() -> Collection[str]:
    """The roles whose sizes this plugin acts upon."""
    return ("oproj",) if on_vllm_ascend() else ROLE_TITLES


def sizes_on(vllm_config: Any) -> set[str]:
    """The keys of the section that are on, whatever they are."""
    return {name for name, value in _section(vllm_config).items() if value not in _OFF}


def sizes_of(vllm_config: Any) -> dict[str, int]:
    """The size of each role that is this plugin's; for a configuration that the rules have passed."""
    section = _section(vllm_config)
    return {role: int(section.get(size_option(role)) or 0) for role in own_roles()}


def set_sizes(vllm_config: Any, sizes: Mapping[str, int]) -> None:
    """Write the sizes that remain, and 0 for those that were given and do not."""
    given = {option for role in own_roles() if (option := size_option(role)) in _section(vllm_config)}
    remaining = {size_option(role): size for role, size in sizes.items() if size}
    config = vllm_config.additional_config
    config[SECTION] = {**_section(vllm_config), **dict.fromkeys(given, 0), **remaining}


def automatic_roles(vllm_config: Any) -> list[str]:
    """The roles of this plugin whose size is left to it."""
    section = _section(vllm_config)
    return [role for role in own_roles() if section.get(size_option(role)) == AUTO]


def write_sizes(vllm_config: Any, sizes: Mapping[str, int]) -> None:
    """Write the sizes of some roles and leave the others."""
    written = {size_option(role): size for role, size in sizes.items()}
    vllm_config.additional_config[SECTION] = {**_section(vllm_config), **written}


def without_others(additional_config: Any) -> Any:
    """The configuration without the sizes that are another's to judge."""
    section = additional_config.get(SECTION) if isinstance(additional_config, Mapping) else None
    if not on_vllm_ascend() or not isinstance(section, Mapping):
        return additional_config
    others = {size_option(role) for role in ROLE_TITLES if role not in own_roles()}
    others.add("olora_tensor_parallel_size")
    kept = {name: size for name, size in section.items() if name not in others}
    return {**additional_config, SECTION: kept}


def in_words(sizes: Mapping[str, int], roles: Iterable[str] = ROLE_TITLES) -> str:
    """The sizes of some roles that split, such as ``oproj_tensor_parallel_size=8``."""
    return ", ".join(f"{size_option(role)}={sizes[role]}" for role in roles if sizes.get(role, 0) > 1)


def _section(vllm_config: Any) -> Mapping[str, Any]:
    config = vllm_config.additional_config
    section = config.get(SECTION) if isinstance(config, Mapping) else None
    return section if isinstance(section, Mapping) else {}
