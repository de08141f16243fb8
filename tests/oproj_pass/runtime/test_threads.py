"""What one thread's runner does to Dynamo, another thread never sees."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from oproj_pass.errors import EagerStepError
from oproj_pass.runtime import DecodeRunner
from tests.oproj_pass.runtime.conftest import ScriptedPeer


def compiled_linear():
    return torch.compile(nn.Linear(3, 3), backend="eager", dynamic=False)


@pytest.fixture
def during(plan):
    """Runs ``action`` in another thread while a captured runner's step is in the middle of its model."""

    def run(action):
        linear, results = compiled_linear(), []

        def model(x):
            x = linear(x)
            if runner.phase.name == "SERVING":
                with ThreadPoolExecutor(1) as other:
                    results.append(other.submit(action).result())
            return linear(x)

        runner = DecodeRunner(model, plan, rows={"x": 0}, group=ScriptedPeer())
        runner.capture({"x": torch.zeros(1, 3)})
        runner.step({"x": torch.ones(3, 3)})
        return results[0]

    return run


def test_another_thread_compiles_during_a_step(during):
    assert during(lambda: compiled_linear()(torch.ones(5, 3)).shape) == (5, 3)


def test_a_step_leaves_the_process_stance_alone(during):
    stance = during(lambda: torch._dynamo.eval_frame._stance.stance)
    assert stance == torch._dynamo.eval_frame._stance.stance == "default"


def test_two_runners_in_two_threads_refuse_what_they_would_compile_and_a_third_compiles(plan):
    stop, errors = threading.Event(), []

    def serve():
        model = nn.Linear(3, 3)
        gained = torch.compile(lambda x, gain: model(x) * len(gain), backend="eager", dynamic=False)
        gain = ["a"]
        runner = DecodeRunner(
            lambda x: gained(x, gain[0]), plan, rows={"x": 0}, group=ScriptedPeer(), name=str(id(gain))
        )
        runner.capture({"x": torch.zeros(1, 3)})
        for step in range(30):
            runner.step({"x": torch.ones(1 + step % 16, 3)})
        gain[0] = "bb"
        with pytest.raises(EagerStepError, match="would recompile"):
            runner.step({"x": torch.ones(1, 3)})

    def compile_on():
        while not stop.is_set():
            try:
                compiled_linear()(torch.ones(2, 3))
            except Exception as error:
                errors.append(error)

    with ThreadPoolExecutor(3) as threads:
        compiling = threads.submit(compile_on)
        serving = [threads.submit(serve) for _ in range(2)]
        outcomes = [future.exception(60) for future in serving]
        stop.set()
        compiling.result(60)
    assert outcomes == [None, None]
    assert errors == []
    assert torch._dynamo.eval_frame._stance.stance == "default"


def test_limits_are_raised_for_the_capturing_thread_only(plan):
    seen = []

    def model(x):
        with ThreadPoolExecutor(1) as other:
            limit = other.submit(lambda: torch._dynamo.config.recompile_limit).result()
        seen.append((torch._dynamo.config.recompile_limit, limit))
        return x

    before = torch._dynamo.config.recompile_limit
    DecodeRunner(model, plan, rows={"x": 0}).capture({"x": torch.zeros(1, 3)})
    assert (before * len(plan.sizes), before) in seen
    assert {limit for _, limit in seen} == {before}
