"""Applies the deployment's rules to a VllmConfig: before the platform's hook, and again after it.

After it, because a platform rewrites graph and compilation modes: one release turns ``backend="oproj_npu"``
into no compilation and no graphs, and leaves the knob on. Decides also which rules a fixed capacity makes
moot.
"""

from collections.abc import Callable
from typing import Any

from vllm.platforms import current_platform

from oproj_pass.deployment import Deployment, DeploymentReport, Rule, check_deployment
from oproj_pass.errors import ConfigError
from oproj_pass.integrations.vllm.automatic import resolve_automatic
from oproj_pass.integrations.vllm.head import require_known_head
from oproj_pass.integrations.vllm.hooks import wrap
from oproj_pass.integrations.vllm.metrics_files import share_folder
from oproj_pass.integrations.vllm.preemption import require_failing_loads
from oproj_pass.integrations.vllm.settings import BACKEND, has_section, resolve, section_of
from oproj_pass.integrations.vllm.sizes import (
    in_words,
    on_vllm_ascend,
    own_roles,
    sizes_of,
    sizes_on,
    without_others,
)
from oproj_pass.passes.sites.options import size_option

# The rules that see to steps of equal row counts: an exchange of fixed capacity has those anyway.
MOOT_WITH_CAPACITY = frozenset(
    {
        Rule.KV_CONSUMER,
        Rule.RECOMPUTE_SCHEDULER,
        Rule.GRAPH_MODE,
        Rule.PREEMPT_OFFLOAD,
        Rule.CAPTURE_COVERAGE,
        Rule.NONBSP,
    }
)
# What only the platform decides: graph mode and captured sizes.
LEFT_TO_PLATFORM = frozenset({Rule.GRAPH_MODE, Rule.PCP_DP_GRAPH_MODE, Rule.CAPTURE_COVERAGE})


def install() -> None:
    """Wrap the platform's configuration hook."""
    wrap(type(current_platform), "check_and_update_config", _checked)


def _checked(original: Callable[..., Any]) -> Callable[..., Any]:
    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        if not _is_asked(vllm_config):
            original(cls, vllm_config)
            return
        resolve_automatic(vllm_config)
        asked = _compilation(vllm_config)
        check(vllm_config, moot=LEFT_TO_PLATFORM)
        _require_no_adapters(vllm_config)
        original(cls, vllm_config)
        _require_compilation(vllm_config, asked)
        remaining = {str(knob): size for knob, size in check(vllm_config).sizes.items()}
        resolve(vllm_config, {role: remaining.get(size_option(role), 0) for role in own_roles()})
        require_known_head(vllm_config)
        require_failing_loads(vllm_config)
        if any(remaining.values()):
            share_folder()

    return check_and_update_config


def check(vllm_config: Any, moot: frozenset[Rule] = frozenset()) -> DeploymentReport:
    """Judge the configuration as it is now; ``ConfigError`` with every finding at once."""
    if section_of(vllm_config).get("capacity") is not None:
        moot |= MOOT_WITH_CAPACITY
    # The modes are read as they stand: what a platform makes of them has happened, or is about to.
    own = {"device_type": "configured", "additional_config": without_others(vllm_config.additional_config)}
    deployment = Deployment.from_vllm(vllm_config).model_copy(update=own)
    report = check_deployment(deployment, moot=moot)
    report.raise_if_errors()
    return report


def _is_asked(vllm_config: Any) -> bool:
    """Whether a size is on and this plugin's: vllm-ascend has the same keys for layers of its own.

    There the knob is this plugin's if the backend or the plugin's own section says so, and the other sizes
    never are. Elsewhere nobody else reads them, so that a size that is not built must not pass unseen.
    """
    on = sizes_on(vllm_config)
    if vllm_config.model_config is None or not on:
        return False
    if not on_vllm_ascend():
        return True
    named = vllm_config.compilation_config.backend == BACKEND or has_section(vllm_config)
    return named and not on.isdisjoint(map(size_option, own_roles()))


def _require_no_adapters(vllm_config: Any) -> None:
    """Raise ``ConfigError`` where vLLM would wrap layers of low-rank adapters around what is shared.

    vLLM 0.32 runs none beside the experts of data-parallel ranks on a CPU, so their values were never shown.
    """
    shared = in_words(sizes_of(vllm_config))
    if vllm_config.lora_config is not None and shared:
        raise ConfigError(
            f"finegrained_tp_config: {shared} with enable_lora: vLLM wraps its adapters around layers that "
            "hold a part of their weight, and no run has shown that the values are right. Merge the adapter "
            "into the weights, or set the sizes to 0."
        )


def _compilation(vllm_config: Any) -> tuple[Any, str]:
    config = vllm_config.compilation_config
    return config.mode, config.backend


def _require_compilation(vllm_config: Any, asked: tuple[Any, str]) -> None:
    mode, backend = _compilation(vllm_config)
    if asked[0] and not mode:
        raise ConfigError(
            f"compilation_config asked for mode {int(asked[0])} with backend {asked[1]!r}; the platform "
            f"{type(current_platform).__name__} turned it into mode 0 with backend {backend!r}, so no graph "
            "would be rewritten. Use a platform release that keeps custom backends, or set the sizes of "
            "finegrained_tp_config to 0."
        )
