"""A rank that fails between an agreement and the first collective is heard by its peers at once."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from oproj_pass import OProjError
from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.runtime import DecodeRunner
from tests.support.models import decoder, rows

pytestmark = pytest.mark.distributed

# Longer than the pool waits for an answer: whoever waits for a timeout fails the test.
FOREVER = 3600
TWO_SIZES = plan_capture(StepBound(4, 64), sizes=[2, 4])


def full_disk(failing_graph, gm, _):
    """An inner backend without a disk on rank 1, from its ``failing_graph``-th graph on."""
    full_disk.graphs += 1
    if dist.get_rank() == 1 and full_disk.graphs >= failing_graph:
        raise OSError("No space left on device")
    return gm


def failing_step(model, failing_graph=1, **options):
    full_disk.graphs = 0
    options = {
        "oproj_tensor_parallel_size": dist.get_world_size(),
        "inner_backend": partial(full_disk, failing_graph),
        "timeout": FOREVER,
        "step_timeout": FOREVER,
        **options,
    }
    return torch.compile(model, backend="oproj_npu", options=options, dynamic=False)


def attempt(action):
    try:
        action()
    except (OProjError, torch._dynamo.exc.BackendCompilerFailed) as error:
        return type(error).__name__, str(error)
    return "none", ""


def is_intact(model):
    return all(type(p) is nn.Parameter and p.untyped_storage().nbytes() for p in model.parameters())


@torch.inference_mode()
def compile_alone():
    model = decoder(layers=1)
    step = failing_step(model)
    return *attempt(lambda: step(rows(3, 32))), is_intact(model)


def test_a_failing_inner_backend_is_heard_and_nothing_is_released(two_ranks):
    for rank, (kind, text, intact) in enumerate(two_ranks.run(compile_alone)):
        assert kind == ("BackendCompilerFailed" if rank == 1 else "GroupMismatchError")
        assert "No space left on device" in text
        assert rank == 1 or "rank 1 failed: OSError" in text
        assert intact


@torch.inference_mode()
def compile_later():
    """The second shape fails; the group still serves the first."""
    model, reference = decoder(layers=1), decoder(layers=1)
    step = failing_step(model, failing_graph=2)
    step(rows(3, 32))
    failed = attempt(lambda: step(rows(4, 32)))
    x = rows(3, 32)
    return failed, torch.allclose(step(x), reference(x), atol=1e-4)


def test_a_later_graph_that_fails_leaves_the_earlier_ones_serving(two_ranks):
    (peer, peer_serves), (own, own_serves) = two_ranks.run(compile_later)
    assert peer[0] == "GroupMismatchError"
    assert own[0] == "BackendCompilerFailed"
    assert peer_serves
    assert own_serves


def capture(failing_graph):
    step = failing_step(decoder(layers=1), failing_graph)
    runner = DecodeRunner(step, TWO_SIZES, rows={"x": 0}, timeout=FOREVER, capture_timeout=FOREVER)
    return attempt(lambda: runner.capture({"x": torch.zeros(1, 32)}))


@pytest.mark.parametrize("failing_graph", [1, 2])
def test_a_failure_inside_a_runners_capture_is_heard(two_ranks, failing_graph):
    """At the first size the runner does not know its group yet, at the second it does."""
    (peer, peer_text), (_, own_text) = two_ranks.run(capture, failing_graph)
    assert peer == "GroupMismatchError"
    assert "rank 1 failed" in peer_text
    for text in (peer_text, own_text):
        assert "No space left on device" in text


def untraceable():
    """Rank 1 fails in Dynamo, before any backend is called, inside a runner that knows its group."""

    def model(x):
        if dist.get_rank() == 1:
            raise RuntimeError("no such cache")
        return step(x)

    step = failing_step(decoder(layers=1), failing_graph=99)
    runner = DecodeRunner(
        model, TWO_SIZES, rows={"x": 0}, group=dist.group.WORLD, timeout=FOREVER, capture_timeout=FOREVER
    )
    return attempt(lambda: runner.capture({"x": torch.zeros(1, 32)}))


def test_a_rank_that_fails_before_its_backend_is_heard_by_one_that_compiles(two_ranks):
    (peer, peer_text), (own, own_text) = two_ranks.run(untraceable)
    assert (peer, own) == ("GroupMismatchError", "GroupMismatchError")
    assert "rank 1 failed: capture of size 4: RuntimeError: no such cache" in peer_text
    assert "no such cache" in own_text


@torch.inference_mode()
def unknown_backend():
    options = {"inner_backend": "inductr" if dist.get_rank() == 1 else "eager", "timeout": FOREVER}
    step = failing_step(decoder(layers=1), **options)
    return attempt(lambda: step(rows(3, 32)))


def test_an_inner_backend_that_one_rank_lacks_is_heard(two_ranks):
    (peer, peer_text), (own, _) = two_ranks.run(unknown_backend)
    assert (peer, own) == ("GroupMismatchError", "ConfigError")
    assert "rank 1 failed: option inner_backend = 'inductr'" in peer_text


class Scaled(nn.Module):
    """A decoder with a Python float, over which Dynamo starts its trace again after the backend has run."""

    def __init__(self):
        super().__init__()
        self.decoder, self.eps = decoder(layers=1), 1e-6

    def forward(self, x):
        return self.decoder(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


@torch.inference_mode()
def traced_again():
    model, reference, x = Scaled(), Scaled(), rows(3, 32)
    options = {"oproj_tensor_parallel_size": 2, "inner_backend": "aot_eager", "timeout": 30}
    step = torch.compile(model, backend="oproj_npu", options=options, dynamic=True)
    return torch.allclose(step(x), reference(x), atol=1e-4)


def test_a_trace_that_starts_again_on_every_rank_is_no_failure(two_ranks):
    assert two_ranks.run(traced_again) == [True, True]
