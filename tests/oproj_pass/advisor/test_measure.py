"""A collective's time is what it adds to products, its ranks meeting nowhere else."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from oproj_pass.advisor import measure


@pytest.fixture
def seconds(monkeypatch):
    """A clock that only calls move, and a barrier that costs nothing."""
    now = [0.0]
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(dist, "barrier", lambda group: None)

    def lasting(each):
        def call():
            now[0] += each

        return call

    return lasting


def test_a_collective_costs_what_it_adds_to_a_product(seconds):
    clock = measure.Clock(torch.device("cpu"))
    assert clock.us(seconds(0.002)) == pytest.approx(2000)
    assert clock.us_behind(seconds(0.002), seconds(0.005), group=None) == pytest.approx(5000)


def test_a_wait_for_a_slower_rank_counts(seconds):
    """The collective waits for what the peer's product takes longer."""
    clock, exchange, wait = measure.Clock(torch.device("cpu")), seconds(0.005), seconds(0.003)

    def meet():
        wait()
        exchange()

    assert clock.us_behind(seconds(0.002), meet, group=None) == pytest.approx(8000)


def test_is_never_nothing_whatever_noise_makes_of_it(seconds):
    assert measure.Clock(torch.device("cpu")).us_behind(seconds(0.002), seconds(0), group=None) > 0
