"""Auto on a known machine takes the largest N that costs about nothing; on an unknown one it asks nobody."""

import pytest
import torch

from oproj_pass.advisor.automatic import advised_size, profile_named, profile_of
from oproj_pass.advisor.profile import load_profile
from oproj_pass.advisor.sites import shape_in_config
from oproj_pass.advisor.workload import Shape
from oproj_pass.errors import ConfigError

W8A8 = Shape("oproj", 7168, 16384, 1, 1, 2, "8bit", count=61)


def test_takes_what_was_measured_as_free(caplog):
    with caplog.at_level("INFO", logger="oproj_pass"):
        assert advised_size([W8A8], (8, 4, 2), load_profile("a2"), 24) == 4
    (line,) = caplog.messages
    assert "N = 8: +1." in line
    assert "auto takes 4" in line


def test_knows_a_projection_from_the_config_alone():
    assert shape_in_config({"quantization_config": {"quant_method": "ascend"}}, 2, 7168, 16384, 61) == W8A8
    dense = shape_in_config({}, 2, 7168, 16384, 61)
    assert (dense.weight_itemsize, dense.input_itemsize, dense.kind) == (2, 2, "16bit")
    with pytest.raises(ConfigError, match="gptq"):
        shape_in_config({"quantization_config": {"quant_method": "gptq"}}, 2, 7168, 16384, 61)


def test_takes_the_least_slow_where_every_size_is_slower():
    assert advised_size([W8A8], (8, 4, 2), load_profile("a2"), 256) in (2, 4, 8)


@pytest.mark.parametrize(
    ("device", "profile"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("Ascend910B3", "a2"),
        ("GeForce", None),
    ],
)
def test_finds_the_profile_by_the_devices_name(device, profile):
    found = profile_named(device)
    assert (found and found.name) == profile


def test_the_cpu_has_no_advice():
    assert profile_of(torch.device("cpu")) is None
