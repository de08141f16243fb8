"""A collective's time is what it adds to products, its ranks meeting nowhere else."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from oproj_pass.advisor import measure


class TwoRanks:
    """This rank and a peer whose products take longer; only calls move their clocks, seconds each."""

    def __init__(self):
        self.mine = self.peers = 0.0

    def meet(self, group=None):
        self.mine = self.peers = max(self.mine, self.peers)

    def multiply(self):
        self.mine, self.peers = self.mine + 0.002, self.peers + 0.005

    def exchange(self):
        self.meet()
        self.mine, self.peers = self.mine + 0.004, self.peers + 0.004


@pytest.fixture
def ranks(monkeypatch):
    ranks = TwoRanks()
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: ranks.mine))
    monkeypatch.setattr(dist, "barrier", ranks.meet)
    return ranks


@pytest.fixture
def clock(ranks):
    return measure.Clock(torch.device("cpu"))


def test_a_product_costs_its_own_time(ranks, clock):
    assert clock.us(ranks.multiply) == pytest.approx(2000)


def test_a_collective_costs_its_time_and_half_of_the_wait_that_two_have_for_the_slower_rank(ranks, clock):
    assert clock.us_behind(ranks.multiply, ranks.exchange, group=None) == pytest.approx(4000 + 3000 / 2)


def test_a_barrier_before_each_collective_would_hide_the_wait(ranks, clock):
    """The negative control."""

    def multiply_and_meet():
        ranks.multiply()
        ranks.meet()

    assert clock.us_behind(multiply_and_meet, ranks.exchange, group=None) == pytest.approx(4000)


def test_is_never_nothing_whatever_noise_makes_of_it(ranks, clock):
    assert clock.us_behind(ranks.multiply, lambda: None, group=None) > 0
