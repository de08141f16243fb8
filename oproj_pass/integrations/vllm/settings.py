"""What a VllmConfig asks of the plugin; decides whether the plugin is on.

The knob is ``additional_config.finegrained_tp_config.oproj_tensor_parallel_size``; options of the backend may
stand beside it, in ``additional_config.oproj_pass``. Once the rules have passed, that section also says what
the graphs are made of. vLLM hashes ``additional_config`` into the keys of its compile caches and sends it to
every worker, so one key never serves two rewrites, and all processes read the same settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from oproj_pass.passes import ShardOProj
from oproj_pass.passes.sites.options import ROLE_TITLES, size_option

BACKEND = "oproj_npu"
KNOB = "oproj_tensor_parallel_size"
KNOB_SECTION = "finegrained_tp_config"
SECTION = "oproj_pass"

_SIZES = set(map(size_option, ROLE_TITLES))
_DECIDED_BY_VLLM = {*_SIZES, "group", "plan", "release_weights", "agree_on_rows", "step_timeout"}
_OPTIONS = {"load_sharded", *OProjConfig.model_fields} - _DECIDED_BY_VLLM
_RESOLVED = "rewrite"
_OFF = (None, 0, "0")


@dataclass(frozen=True)
class Settings:
    """The plugin's settings of one engine.

    ``size``: N. ``capacity``: rows of every exchange, None for the step's own. ``load_sharded``: layers
    load their slice only, or else in full for the backend to release. ``options``: the backend's other ones.
    """

    size: int
    capacity: int | None = None
    load_sharded: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


def knob_of(vllm_config: Any) -> Any:
    """The knob as written, 0 where there is none."""
    section = _mapping(vllm_config).get(KNOB_SECTION)
    return section.get(KNOB, 0) if isinstance(section, Mapping) else 0


def sizes_on(vllm_config: Any) -> set[str]:
    """The keys of the knob's section that are on, whatever they are."""
    section = _mapping(vllm_config).get(KNOB_SECTION)
    written = section if isinstance(section, Mapping) else {}
    return {name for name, value in written.items() if value not in _OFF}


def section_of(vllm_config: Any) -> dict[str, Any]:
    """``additional_config.oproj_pass`` as written; ``ConfigError`` for a key that is none of the options."""
    section = _mapping(vllm_config).get(SECTION, {})
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"additional_config.{SECTION} is {section!r}, required: a mapping of options "
            f"({', '.join(sorted(_OPTIONS))})."
        )
    unknown = sorted(set(section) - _OPTIONS - {_RESOLVED})
    if unknown:
        raise ConfigError(
            f"additional_config.{SECTION} has the unknown option {unknown[0]!r}, known: "
            f"{', '.join(sorted(_OPTIONS))}. Correct the name or remove it."
        )
    return dict(section)


def settings_of(vllm_config: Any) -> Settings | None:
    """The settings that the rules resolved for this engine, None where the plugin is off."""
    if vllm_config is None or _RESOLVED not in (section := _mapping(vllm_config).get(SECTION, {})):
        return None
    options = {name: value for name, value in section.items() if name != _RESOLVED}
    return Settings(
        size=knob_of(vllm_config),
        capacity=options.pop("capacity", None),
        load_sharded=options.pop("load_sharded", True),
        options=options,
    )


def has_section(vllm_config: Any) -> bool:
    """Whether ``additional_config.oproj_pass`` is there: written by the user, or by ``resolve`` before."""
    return SECTION in _mapping(vllm_config)


def resolve(vllm_config: Any, size: int) -> None:
    """Turn the plugin on for this engine, with N = ``size``."""
    config = vllm_config.additional_config
    config[KNOB_SECTION] = {**config[KNOB_SECTION], KNOB: size}
    section = section_of(vllm_config)
    if section.get("capacity") is not None:
        section["capacity"] = _sufficient(section["capacity"], vllm_config)
    rewrite = {"version": version("oproj-pass"), "passes": [ShardOProj.name]}
    config[SECTION] = {**section, _RESOLVED: rewrite}


def _sufficient(capacity: Any, vllm_config: Any) -> int:
    """The capacity in rows, once it is known to hold the engine's largest step."""
    largest: int = vllm_config.scheduler_config.max_num_batched_tokens
    if capacity == "auto":
        return largest
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < largest:
        raise ConfigError(
            f"additional_config.{SECTION}.capacity is {capacity!r}, required: 'auto', or at least "
            f"max_num_batched_tokens ({largest}, after the platform's own changes)."
        )
    return capacity


def turn_off(vllm_config: Any) -> None:
    """Set the knob to 0, for this plugin and for whoever else reads it."""
    config = vllm_config.additional_config
    config[KNOB_SECTION] = {**config[KNOB_SECTION], KNOB: 0}
    config.get(SECTION, {}).pop(_RESOLVED, None)


def _mapping(vllm_config: Any) -> Mapping[str, Any]:
    config = vllm_config.additional_config
    return config if isinstance(config, Mapping) else {}
