"""Rule 15 in vLLM's scheduler: a preempted request whose KV cache cannot be restored whole is aborted.

vLLM frees a preempted request's blocks and asks the KV connector, when it resumes, how many tokens it can
give back. Where that leaves more than the last token, vLLM would compute the rest anew, here, as a prefill.
On a decode node whose output projections are split, ``PreemptionPolicy`` decides instead, and the other
requests go on. Wraps a scheduler's connector and the end of its steps; other engines are not touched.

vllm-ascend's recompute scheduler returns requests to the prefill node itself, and is left alone.
"""

import logging
from collections.abc import Callable
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import RequestStatus

from oproj_pass.deployment import PreemptionPolicy
from oproj_pass.errors import ConfigError, OProjError
from oproj_pass.integrations.vllm.hooks import wrap
from oproj_pass.integrations.vllm.settings import settings_of
from oproj_pass.integrations.vllm.sizes import on_vllm_ascend

logger = logging.getLogger(__name__)


def install() -> None:
    """Wrap the making of a scheduler."""
    wrap(Scheduler, "__init__", _judging)


def policy_of(vllm_config: Any) -> PreemptionPolicy | None:
    """The policy of this engine, None where preemption stays vLLM's own: no split, or no pure KV consumer."""
    settings, transfer = settings_of(vllm_config), vllm_config.kv_transfer_config
    size = settings.sizes.get("oproj", 0) if settings else 0
    if size < 2 or transfer is None or not transfer.is_kv_consumer or transfer.is_kv_producer:
        return None
    return PreemptionPolicy(size)


def require_failing_loads(vllm_config: Any) -> None:
    """Raise ``ConfigError`` where KV cache that fails to load would be computed anew, past the policy."""
    policy = policy_of(vllm_config)
    found = getattr(vllm_config.kv_transfer_config, "kv_load_failure_policy", "fail")
    if policy is not None and found != "fail":
        raise ConfigError(
            f"kv_transfer_config.kv_load_failure_policy is {found!r}, required: 'fail' with "
            f"oproj_tensor_parallel_size={policy.oproj_tensor_parallel_size}: KV cache that cannot be loaded "
            "would be recomputed on this decode node, which is not equivalent. Set it to 'fail', the default."
        )


class LostRequests:
    """The preempted requests of one scheduler that its connector cannot restore, until they are aborted."""

    def __init__(self, scheduler: Any, policy: PreemptionPolicy) -> None:
        self.scheduler, self.policy = scheduler, policy
        self.errors: dict[str, OProjError] = {}

    def judge(self, request: Any, num_local: int, found: tuple[int | None, bool]) -> tuple[int | None, bool]:
        """What the connector ``found`` beyond ``num_local`` tokens in blocks; None keeps it from running."""
        num_external, _ = found
        if request.num_preemptions == 0 or num_external is None:
            return found
        if request.skip_reading_prefix_cache:  # vLLM loads nothing for it, whatever is found
            num_external = 0
        restored, needed = num_local + num_external, request.num_tokens - 1
        if restored >= needed:
            return found
        reason = f"{restored} of {needed} tokens can be restored"
        error = self.policy.on_offload_failure(request.request_id, reason).error
        if error is None:
            return found
        self.errors.setdefault(request.request_id, error)
        return None, False

    def abort(self, outputs: dict[int, Any]) -> dict[int, Any]:
        """End them with vLLM's finish reason ``error``; the policy's error is the stop reason."""
        errors, self.errors = self.errors, {}
        for request in self.scheduler.finish_requests(errors, RequestStatus.FINISHED_ERROR):
            error = errors[request.request_id]
            logger.error("%s", error)
            output = EngineCoreOutput(
                request_id=request.request_id,
                new_token_ids=[],
                finish_reason=request.get_finished_reason(),
                stop_reason=str(error),
                events=request.take_events(),
                trace_headers=request.trace_headers,
            )
            engine_outputs = outputs.setdefault(request.client_index, EngineCoreOutputs(outputs=[]))
            engine_outputs.outputs.append(output)
        return outputs


def _judging(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        policy = policy_of(self.vllm_config)
        if policy is None:
            return
        if on_vllm_ascend():
            logger.info("preempted requests are left to vllm-ascend's recompute scheduler")
            return
        _watch(self, LostRequests(self, policy))

    return __init__


def _watch(scheduler: Any, lost: LostRequests) -> None:
    ask, end_step = scheduler.connector.get_num_new_matched_tokens, scheduler.update_from_output

    def get_num_new_matched_tokens(request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return lost.judge(request, num_computed_tokens, ask(request, num_computed_tokens))

    def update_from_output(*args: Any, **kwargs: Any) -> dict[int, Any]:
        return lost.abort(end_step(*args, **kwargs))

    scheduler.connector.get_num_new_matched_tokens = get_num_new_matched_tokens
    scheduler.update_from_output = update_from_output
