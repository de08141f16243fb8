"""The switches of `additional_config` beside the sizes: their names, and when one is on.

Reads them as the typed configuration of vllm-ascend does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = [
    "NONBSP",
    "O_PROJ_OVER_PCP",
    "RECOMPUTE_SCHEDULER",
    "SCHEDULER_SECTION",
    "VOCABULARY_OVER_PCP",
    "Setting",
    "is_on",
    "section",
]

SCHEDULER_SECTION = "scheduler_config"
RECOMPUTE_SCHEDULER = "recompute_scheduler_enable"
NONBSP = "nonbsp_config"
O_PROJ_OVER_PCP = "enable_pcp_o_proj_weight_sharding"
VOCABULARY_OVER_PCP = "enable_pcp_embedding_lmhead_weight_sharding"

_ON = ("1", "on", "t", "true", "y", "yes")


class Setting(NamedTuple):
    """One setting: its path, and its value as written or by default."""

    field: str
    value: Any


def is_on(value: Any) -> bool:
    """Whether a switch of this value is on: a boolean, 0 or 1, or the words that pydantic takes for them."""
    return str(value).strip().lower() in _ON


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The section `name` of `config`, empty where it is absent or no mapping."""
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}
