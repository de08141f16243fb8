"""Full collections wait until a runner has captured; young garbage does not."""

import gc

import pytest
import torch

from oproj_pass.runtime import DecodeRunner, PrefillRunner
from oproj_pass.runtime.garbage import NEVER, FullCollections


@pytest.fixture(autouse=True)
def thresholds():
    """Those of this test, whatever the process has."""
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 12)
    yield
    gc.set_threshold(*before)


class Model:
    """Doubles rows, and notes the thresholds that it runs under."""

    def __init__(self, error=None):
        self.seen, self.error = set(), error

    def __call__(self, x, **_):
        self.seen.add(gc.get_threshold())
        if self.error:
            raise self.error
        return 2 * x


def capture(model, plan):
    runner = DecodeRunner(model, plan, rows={"x": 0})
    runner.capture({"x": torch.zeros(1, 3)})
    return runner


def test_capturing_puts_off_full_collections_and_serving_does_not(plan, batch):
    model = Model()
    runner = capture(model, plan)
    assert model.seen == {(701, 11, NEVER)}
    model.seen.clear()
    runner.step({"x": batch(3)})
    assert model.seen == {(701, 11, 12)}


def test_a_capture_that_fails_puts_the_threshold_back(plan):
    with pytest.raises(ValueError, match="no kernel"):
        capture(Model(ValueError("no kernel")), plan)
    assert gc.get_threshold() == (701, 11, 12)


def test_the_warm_up_of_a_prefill_runner_puts_them_off_too():
    model = Model()
    PrefillRunner(model, sizes=[2], rows={"x": 0}).warm_up({"x": torch.zeros(1, 3)})
    assert model.seen == {(701, 11, NEVER)}
    assert gc.get_threshold() == (701, 11, 12)


def test_captures_of_several_threads_put_the_threshold_back_once():
    collections = FullCollections()
    first, second = collections.put_off(), collections.put_off()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (701, 11, NEVER)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (701, 11, 12)


def test_keeps_what_somebody_else_sets_meanwhile():
    with FullCollections().put_off():
        gc.set_threshold(500, 5, 6)
    assert gc.get_threshold() == (500, 5, 6)
