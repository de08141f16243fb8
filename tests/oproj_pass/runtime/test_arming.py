"""A runner is armed by the sharded graphs that run in it, wherever its callable keeps the model."""

import logging

import pytest
import torch

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.runtime import DecodeRunner
from tests.oproj_pass.runtime.conftest import ScriptedPeer
from tests.oproj_pass.runtime.test_sealed import WRAPS
from tests.support.fake import fake_world
from tests.support.models import decoder

ONE = plan_capture(StepBound(2, 64), sizes=[2])
HIDDEN = 32


@pytest.fixture(autouse=True)
def two_fake_ranks():
    with fake_world(2):
        yield


class PerRow(torch.nn.Module):
    """A decoder over [rows, 1, H]."""

    def __init__(self):
        super().__init__()
        self.decoder = decoder(layers=1)

    def forward(self, x):
        return self.decoder(x)


def sharded(**options):
    options = {"oproj_tensor_parallel_size": 2, **options}
    return torch.compile(PerRow().requires_grad_(False), backend="oproj_npu", options=options)


def captured(fn, **options):
    runner = DecodeRunner(fn, ONE, rows={"x": 0}, **options)
    runner.capture({"x": torch.zeros(1, 1, HIDDEN)})
    return runner


@pytest.mark.parametrize("wrap", [name for name in WRAPS if "graph" not in name])
def test_arms_whatever_stands_around_the_model(wrap):
    assert captured(WRAPS[wrap](sharded())).armed


def test_arms_where_full_weights_are_kept():
    assert captured(sharded(release_weights=False)).armed


def test_warm_up_arms_too():
    runner = DecodeRunner(sharded(), ONE, rows={"x": 0})
    runner.warm_up({"x": torch.zeros(1, 1, HIDDEN)})
    assert runner.armed


def test_says_so_where_nothing_sharded_ran_and_ranks_may_exchange(caplog):
    runner = captured(lambda x: 2 * x)
    assert not runner.armed
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "steps are not guarded" in warning.getMessage()
    assert "the process group has 2 ranks" in warning.getMessage()
    assert "pass them as `group`" in warning.getMessage()


class Alone(ScriptedPeer):
    ranks = (0,)


@pytest.mark.parametrize("group", [Alone, ScriptedPeer])
def test_is_silent_where_the_group_was_said(caplog, group):
    captured(lambda x: 2 * x, group=group())
    assert "not guarded" not in caplog.text
