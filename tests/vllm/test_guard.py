"""The guard in a running engine: it refuses the first real eager step, and nothing before it."""

from unittest.mock import patch

import pytest

from tests.vllm.support.engine import COMPILED, build_engine, greedy
from tests.vllm.support.process import run_ranks

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other


def steps_without_graphs(rank, model):
    """An engine that steps eager, as the CPU has no graphs: the rules that forbid it are looked away."""
    from oproj_pass.integrations.vllm import guard, rules

    modes = []
    original, check = guard.require_graph, rules.check

    def recording(vllm_config, mode, context):
        modes.append(mode.name)
        original(vllm_config, mode, context)

    def lenient(vllm_config, moot=frozenset()):
        return check(vllm_config, moot | rules.MOOT_WITH_CAPACITY)

    with patch.object(rules, "check", lenient), patch.object(guard, "require_graph", recording):
        llm = build_engine(model, size=2, compilation=COMPILED, capacity=None)
        judged_while_starting = list(modes)
        llm.llm_engine.engine_core.engine_core.execute_dummy_batch()
        judged_while_idle = list(modes)
        try:
            greedy(llm, [[5, 6, 7]])
        except Exception as error:  # the test says which it must be
            return judged_while_starting, judged_while_idle, modes, f"{type(error).__name__}: {error}"
    return judged_while_starting, judged_while_idle, modes, "no error"


def test_refuses_the_first_real_eager_step_and_lets_warm_up_and_idle_steps_pass(checkpoints):
    for starting, idle, modes, error in run_ranks(steps_without_graphs, checkpoints["qwen3_moe"]):
        assert (starting, idle, modes) == ([], [], ["NONE"])
        assert error.startswith("EagerStepError: a step of 3 tokens (by rank [3, 3])")
