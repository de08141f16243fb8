"""The plugin for vLLM: found through the entry point ``vllm.general_plugins``, loaded in every process.

It wraps vLLM's own hooks and decides nothing here. With every fine-grained size off, a wrapper hands straight
on to what it wraps.

- ``rules``: the deployment's rules, around the platform's ``check_and_update_config``.
- ``layers``: output projections that load this rank's slice only, around ``RowParallelLinear.__init__``.
- ``hoist``: projections that an operator calls inside itself, called after it, around the construction of
  ``MultiHeadLatentAttentionWrapper``.
- ``backend``: the pass in front of the chosen compiler, around ``CompilationConfig.init_backend``.
- ``head``: the LM head as a graph of its own, around the worker's ``load_model`` and ``execute_dummy_batch``.
- ``guard``: no real step may run eager, around ``set_additional_forward_context``.
- ``metrics``: what the steps came to, around the worker's own calls, in files that ``/metrics`` shows.
- ``preemption``: a preempted request is restored whole or aborted, around the scheduler's connector.
- ``reload``: no new weights past the shards, around the worker's ``reload_weights``.
- ``sleep``: no sleep that would lose the shards, around the engine's and the worker's ``sleep``.
"""

import logging

from oproj_pass.integrations.vllm.settings import Settings, settings_of
from oproj_pass.torch_internals import require_internals

__all__ = ["Settings", "register", "settings_of"]

logger = logging.getLogger(__name__)


def register() -> None:
    """The entry point. Wraps each hook once, however often it is called; none in a vLLM that lacks one."""
    try:
        require_internals("oproj_pass")
        from oproj_pass.integrations.vllm import (  # noqa: PLC0415  (they import vLLM)
            backend,
            guard,
            head,
            hoist,
            layers,
            metrics,
            preemption,
            reload,
            rules,
            sleep,
        )
    except ImportError as error:
        logger.warning("o_proj sharding is not available in this vLLM: %s", error)
        return
    for part in (rules, layers, hoist, backend, head, guard, metrics, preemption, reload, sleep):
        part.install()
