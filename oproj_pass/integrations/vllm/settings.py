"""What a VllmConfig asks of the plugin; decides whether the plugin is on.

The sizes are those of ``additional_config.finegrained_tp_config``; options of the backend may stand beside
them, in ``additional_config.oproj_pass``. Once the rules have passed, that section also says what the graphs
are made of. vLLM hashes ``additional_config`` into the keys of its compile caches and sends it to every
worker, so one key never serves two rewrites, and all processes read the same settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from oproj_pass.integrations.vllm.sizes import HEAD, set_sizes, sizes_of
from oproj_pass.passes import ShardOProj
from oproj_pass.passes.sites.options import ROLE_TITLES, size_option

BACKEND = "oproj_npu"
SECTION = "oproj_pass"

_SIZES = set(map(size_option, ROLE_TITLES))
_DECIDED_BY_VLLM = {*_SIZES, "group", "plan", "release_weights", "agree_on_rows", "step_timeout"}
_OPTIONS = {"load_sharded", *OProjConfig.model_fields} - _DECIDED_BY_VLLM
_RESOLVED = "rewrite"


@dataclass(frozen=True)
class Settings:
    """The plugin's settings of one engine.

    ``sizes``: N of each role. ``sampled_rows``: the most rows that a step samples, and the rows of every
    exchange of the LM head. ``capacity``: those of every other exchange, None for the step's own.
    ``load_sharded``: output projections load their slice only, or else in full for the backend to release.
    ``options``: the backend's other ones.
    """

    sizes: Mapping[str, int]
    sampled_rows: int = 0
    capacity: int | None = None
    load_sharded: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def in_model(self) -> dict[str, int]:
        """The sizes of the roles inside the model's own graph: all but the LM head's."""
        return {role: size for role, size in self.sizes.items() if role != HEAD}

    @property
    def of_head(self) -> dict[str, int]:
        """The LM head's size alone."""
        return {HEAD: self.sizes.get(HEAD, 0)}


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
        sizes=sizes_of(vllm_config),
        sampled_rows=_sampled_rows(vllm_config),
        capacity=options.pop("capacity", None),
        load_sharded=options.pop("load_sharded", True),
        options=options,
    )


def settings_of_model(vllm_config: Any) -> Settings | None:
    """The same for the model that is being built: None where it is a draft, which no graph of ours serves."""
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is not None and vllm_config.model_config is speculative.draft_model_config:
        return None
    return settings_of(vllm_config)


def has_section(vllm_config: Any) -> bool:
    """Whether ``additional_config.oproj_pass`` is there: written by the user, or by ``resolve`` before."""
    return SECTION in _mapping(vllm_config)


def resolve(vllm_config: Any, sizes: Mapping[str, int]) -> None:
    """Set the sizes by role for this plugin and for whoever else reads them; turn it on if one is on."""
    config = vllm_config.additional_config
    set_sizes(vllm_config, sizes)
    if not any(sizes.values()):
        config.get(SECTION, {}).pop(_RESOLVED, None)
        return
    section = section_of(vllm_config)
    if section.get("capacity") is not None:
        section["capacity"] = _sufficient(section["capacity"], vllm_config)
    rewrite = {"version": version("oproj-pass"), "passes": [ShardOProj.name]}
    config[SECTION] = {**section, _RESOLVED: rewrite}


def _sampled_rows(vllm_config: Any) -> int:
    drafts = getattr(vllm_config.speculative_config, "num_speculative_tokens", 0) or 0
    requests: int = vllm_config.scheduler_config.max_num_seqs
    return requests * (1 + drafts)


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


def _mapping(vllm_config: Any) -> Mapping[str, Any]:
    config = vllm_config.additional_config
    return config if isinstance(config, Mapping) else {}
