"""The runner watches the weights that ran, and says where it cannot."""

import gc

import pytest
import torch
from torch import nn

from oproj_pass.runtime.observe import Observation
from oproj_pass.runtime.weights import WeightWatch

PATH = "projection.weight"


@pytest.fixture
def model():
    return nn.ModuleDict({"projection": nn.Linear(4, 4)})


@pytest.fixture
def observed(model):
    """A compiled function that ran a module which nobody called."""
    step = torch.compile(lambda x: model["projection"](x), backend="eager")
    observation = Observation()
    with torch.inference_mode(), observation.observing():
        step(torch.ones(2, 4))
    assert observation.graph_weights
    return observation


@pytest.fixture
def frozen():
    yield gc.freeze
    gc.unfreeze()


def replace(model):
    model["projection"].weight = nn.Parameter(torch.ones(4, 4))


def test_sees_a_weight_replaced_in_a_module_that_only_a_graph_ran(model, observed, caplog):
    watch = WeightWatch(observed)
    assert watch.moved() is None
    replace(model)
    assert f"{PATH} moved to another address" in watch.moved()
    assert not caplog.records


def test_says_that_it_cannot_see_into_frozen_modules(model, observed, frozen, caplog):
    frozen()
    watch = WeightWatch(observed)
    assert "gc.freeze() hides modules" in caplog.text
    replace(model)
    assert watch.moved() is None
