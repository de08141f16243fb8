"""One rank whose compiled model would recompile, run eager or read a moved weight: all learn of it."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives

from tests.distributed.runtime.ranks import PATIENCE, batch, caught, serving, whole_group

pytestmark = pytest.mark.distributed


class Reduced(nn.Module):
    """Sums a linear layer's result over the ranks; ``gain`` and ``scale`` are guarded by Dynamo."""

    def __init__(self, group):
        super().__init__()
        self.linear, self.group, self.gain = nn.Linear(3, 3), group.device, 2

    def forward(self, x, scale):
        return collectives.all_reduce(self.linear(x) * self.gain * scale, "sum", self.group)


def compiled_runner():
    torch.manual_seed(0)
    model = Reduced(whole_group())
    compiled = torch.compile(model, backend="eager", dynamic=False)
    runner = serving(compiled, example={"x": torch.zeros(1, 3), "scale": 1})
    runner.step({"x": batch(2), "scale": 1})
    return runner, model


def unsealing(what):
    runner, model = compiled_runner()
    step = {"x": batch(3), "scale": 1}
    if dist.get_rank() == 1:
        if what == "recompiles":
            model.gain = 3
        elif what == "brings another constant":
            step["scale"] = 5
        elif what == "moves a weight":
            model.linear.weight.data = model.linear.weight.data.clone()
        elif what == "allows eager":
            torch.compiler.set_stance("force_eager")
    try:
        return caught(lambda: runner.step(step))
    finally:
        torch.compiler.set_stance("default")


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        ("brings another constant", "input 'scale' is 5, the graphs were captured with 1"),
        ("moves a weight", "linear.weight moved"),
        ("allows eager", "torch.compiler.set_stance('force_eager') is in force"),
    ],
)
def test_what_a_rank_sees_before_the_step_makes_all_refuse_it(ranks, what, cause):
    for kind, message, seconds in ranks.run(unsealing, what):
        assert kind == "EagerStepError"
        assert f"rank 1 cannot replay: {cause}" in message
        assert seconds < PATIENCE


def test_a_rank_that_recompiles_inside_the_step_is_named_with_its_guard(ranks):
    for rank, (kind, message, seconds) in enumerate(ranks.run(unsealing, "recompiles")):
        assert kind == ("EagerStepError" if rank == 1 else "GroupMismatchError")
        assert "rank 1" in message
        assert "gain" in message
        assert "recompile" in message
        assert seconds < PATIENCE
