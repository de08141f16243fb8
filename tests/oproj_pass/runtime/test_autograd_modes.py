"""The caller's autograd mode decides nothing: not at capture, nor at a step or an idle step."""

import pytest
import torch
from torch import nn

from oproj_pass.runtime import DecodeRunner
from tests.oproj_pass.runtime.conftest import ScriptedPeer

MODES = {"inference": torch.inference_mode, "no_grad": torch.no_grad, "grad": torch.enable_grad}
ROWS = {"x": 0, "slots": 0, "table": None}


class Cached(nn.Module):
    """Writes its rows to a cache, and reads a block table."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("cache", torch.zeros(32, 3))

    def forward(self, x, slots, table):
        self.cache.index_copy_(0, slots, x)
        return self.linear(x) + self.cache[table].sum()


def inputs(num_tokens):
    x = torch.ones(num_tokens, 3, requires_grad=torch.is_grad_enabled())
    return {"x": x, "slots": torch.arange(num_tokens), "table": torch.tensor([1, 2])}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("capture_mode", MODES)
def test_steps_run_in_any_mode_after_capture_in_any_other(plan, capture_mode, alone):
    model, reference = Cached(), Cached()
    reference.load_state_dict(model.state_dict())
    compiled = torch.compile(model, backend="eager", dynamic=False)
    group = None if alone else ScriptedPeer()
    with MODES[capture_mode]():
        runner = DecodeRunner(compiled, plan, rows=ROWS, pad={"slots": 31}, group=group)
        runner.capture(inputs(1))
    for mode in MODES.values():
        with mode():
            result = runner.step(inputs(3))
            runner.idle_step({"table": inputs(1)["table"]})
            with torch.no_grad():
                torch.testing.assert_close(result, reference(**inputs(3)))
    assert not any(buffer.requires_grad for buffer in runner._inputs.arguments(4).values())


@pytest.mark.parametrize("mode", MODES)
def test_a_step_without_a_graph_runs_in_any_mode_too(plan, mode):
    runner = DecodeRunner(Cached(), plan, rows=ROWS, pad={"slots": 31})
    with torch.inference_mode():
        runner.capture(inputs(1))
    with MODES[mode]():
        assert runner.step(inputs(20)).shape == (20, 3)
