"""How many chunks a step is exchanged in where that is measured: as many on all ranks, where they pay."""

import logging
from unittest.mock import patch

import pytest
import torch

from oproj_pass.backend import chunks
from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from tests.support.models import decoder, rows

ROWS = 4096  # of K = 64 and H = 32 in float32: half a MiB for each of two chunks


@torch.inference_mode()
def measured(times, count=ROWS):
    """The error of a step with ``chunks="auto"``, its collectives, and what the log says of the choice."""
    torch._dynamo.reset()
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("oproj_pass.backend.chunks")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    model, reference = (decoder(layers=1, hidden=32, heads=8, head_dim=8) for _ in range(2))
    options = {"oproj_tensor_parallel_size": 2, "chunks": "auto", "agree_on_rows": False}
    step = torch.compile(model, backend="oproj_npu", options=options, fullgraph=True, dynamic=False)
    x = rows(count, 32)
    found = patch.object(chunks, "slowest_microseconds", lambda *_: times) if times else patch.dict({})
    try:
        with found:
            error = (step(x) - reference(x)).abs().max().item()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    with torch.profiler.profile() as profile:
        step(x)
    sent = [event.name for event in profile.events() if event.name == "_c10d_functional::all_to_all_single"]
    return error, len(sent), said[0]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("times", "sent"),
    [({"1": 100.0, "2": 60.0, "4": 50.0}, 2), ({"1": 100.0, "2": 97.0}, 1), ({"1": 100.0, "2": 130.0}, 1)],
)
def test_takes_chunks_only_where_they_gain(two_ranks, times, sent):
    for error, count, _ in two_ranks.run(measured, times):
        assert error < 1e-4
        assert count == sent


@pytest.mark.distributed
def test_measures_on_the_group_and_takes_the_same_on_all_ranks(two_ranks):
    (error, sent, said), (_, peers_sent, peers_said) = two_ranks.run(measured, None)
    assert error < 1e-4
    assert (sent, said) == (peers_sent, peers_said)
    assert said.startswith(
        f"chunks = auto: {sent}, for {ROWS} x 64 rows and 32 outputs over 2 ranks in float32"
    )


@pytest.mark.distributed
def test_measures_nothing_where_rows_stay_together_anyway(two_ranks):
    for _, sent, said in two_ranks.run(measured, None, 4):
        assert sent == 1
        assert said.endswith("no projection that is sharded by rows can be exchanged in chunks")


@pytest.mark.parametrize("chunks", [0, -1, "all"])
def test_refuses_a_number_of_chunks_that_is_none(chunks):
    with pytest.raises(ConfigError, match="option chunks"):
        OProjConfig(chunks=chunks)
