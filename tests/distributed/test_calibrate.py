"""A calibration gives every rank one profile, complete enough to advise with."""

import json

import pytest
import torch

from oproj_pass.advisor.calibrate import Grid, calibrate
from oproj_pass.advisor.figures import Basis
from oproj_pass.advisor.profile import Profile
from oproj_pass.advisor.step_time import step_difference
from oproj_pass.advisor.workload import EXCHANGES, Shape
from oproj_pass.errors import ConfigError

pytestmark = pytest.mark.distributed

GRID = Grid(nbytes=(1024, 4096, 16384), rows=(1, 8), features=(64, 128, 256))
SHAPE = Shape("oproj", 128, 256, 4, 4, 4, "32bit", count=2)


def small_calibration():
    steps = []
    device = torch.device("cpu")
    profile = calibrate("mine", device, torch.float32, GRID, lambda: steps.append(1))
    return profile.model_dump_json(), len(steps)


def test_every_rank_has_one_profile_with_a_source_for_each_number(two_ranks):
    (first, steps), (second, _) = two_ranks.run(small_calibration)
    assert first == second
    assert steps == GRID.num_measurements(2)
    profile = Profile.model_validate(json.loads(first))
    assert {basis for _, _, basis in profile.figures()} <= {Basis.MEASURED, Basis.ASSUMED}
    assert all(set(table.us) == set(table.smallest_us) == {2} for table in profile.collectives.values())
    step = step_difference(profile, [SHAPE], EXCHANGES["oproj"][0], size=2, tokens=4)
    assert step.exchange.value > 0


def test_needs_a_process_group():
    with pytest.raises(ConfigError, match="torchrun"):
        calibrate("mine", torch.device("cpu"), torch.float32, GRID)
