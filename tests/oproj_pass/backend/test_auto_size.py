"""``auto`` that shards nothing says so, and why."""

import logging

import pytest
import torch

from tests.support.fake import fake_world
from tests.support.models import decoder, rows


def warnings_of(caplog, world, **model):
    with caplog.at_level(logging.WARNING), fake_world(world), torch.inference_mode():
        torch.compile(decoder(layers=1, **model), backend="oproj_npu")(rows(3, 32))
    return [line for line in caplog.messages if "auto fits none of 8, 4, 2" in line]


@pytest.mark.parametrize(
    ("world", "model", "cause"),
    [
        (3, {}, "none divides the world of 3 ranks."),
        (2, {"heads": 3, "head_dim": 5}, "none divides the world of 2 ranks and K = 15."),
    ],
)
def test_warns_where_no_size_fits(caplog, world, model, cause):
    (line,) = warnings_of(caplog, world, **model)
    assert cause in line
    assert "set 0 if that is meant" in line


@pytest.mark.parametrize("world", [1, 2])
def test_is_silent_where_one_fits_or_there_is_no_peer(caplog, world):
    assert warnings_of(caplog, world) == []
