"""The group gathers for a step that no graph serves if every rank is ready to, and refuses it otherwise."""

import pytest
import torch
import torch.distributed as dist

from oproj_pass.capture import GraphMode
from oproj_pass.errors import ConfigError, EagerStepError
from oproj_pass.runtime import StepKind
from tests.support.fake import fake_world


@pytest.fixture
def gathering(serving, peer):
    def build(fn=lambda x: 2 * x, **options):
        return serving(fn, group=peer, wide_steps="gather", **options)

    return build


WIDE = [{"rows": 17}, {"rows": 3, "uniform_decode": False}, {"rows": 3, "mode": GraphMode.NONE}, {"rows": 0}]


@pytest.mark.parametrize("step", WIDE)
def test_runs_unsharded_what_no_graph_serves(gathering, batch, peer, step):
    runner = gathering()
    peer.num_tokens, peer.gathers = 40, True
    x = batch(step.pop("rows"))
    assert torch.equal(runner.step({"x": x}, **step), 2 * x)


def test_replays_what_a_graph_serves(gathering, batch, peer):
    ran = []

    def counted(x):
        ran.append(len(x))
        return 2 * x

    runner = gathering(counted)
    peer.gathers = True
    ran.clear()
    runner.step({"x": batch(3)})
    assert ran == [4]


@pytest.mark.parametrize("wide_steps", [None, "gather"])
def test_refuses_where_one_rank_is_not_ready(serving, batch, peer, wide_steps):
    runner = serving(group=peer, wide_steps=wide_steps)
    peer.gathers = wide_steps is None
    with pytest.raises(EagerStepError, match="rank 0 brings 17 tokens"):
        runner.step({"x": batch(17)})
    runner.step({"x": batch(3)})


def test_a_rank_whose_graphs_do_not_serve_it_any_more_refuses(gathering, batch, peer):
    runner = gathering()
    peer.gathers = True
    with torch.compiler.set_stance("force_eager"), pytest.raises(EagerStepError, match="set_stance"):
        runner.step({"x": batch(3)})
    assert not peer.rows[-1].gathers


def test_says_why_a_peer_cannot(gathering, batch, peer, caplog):
    peer.cannot_gather = "ConfigError: keeps the full weight"
    runner = gathering()
    assert "wide steps are refused" in caplog.text
    peer.gathers = True
    with pytest.raises(EagerStepError, match="rank 1 cannot: ConfigError: keeps the full weight"):
        runner.step({"x": batch(17)})
    assert runner.gather_nbytes == 0
    assert not peer.rows[-1].gathers


def test_refuses_ranks_that_would_gather_other_weights(gathering, batch, peer):
    peer.gathers_others = True
    with pytest.raises(EagerStepError, match="equal weights in an equal order"):
        gathering().step({"x": batch(17)})


def test_refuses_a_model_that_communicates_by_itself(gathering, batch, peer):
    with fake_world(2):

        def exchanging(x):
            dist.all_reduce(x.clone())
            return 2 * x

        runner = gathering(exchanging)
        with pytest.raises(EagerStepError, match=r"rank 0 cannot: .* communicates by itself \(c10d"):
            runner.step({"x": batch(17)})


def test_agrees_once_more_at_capture_and_once_a_step(gathering, batch, peer):
    runner = gathering()
    assert [row.kind for row in peer.rows].count(StepKind.GATHER) == 1
    before = runner.num_agreements
    peer.gathers = True
    runner.step({"x": batch(17)})
    assert runner.num_agreements == before + 1


def test_refuses_another_value_by_name(serving):
    with pytest.raises(ConfigError, match="wide_steps = 'pad', required: 'gather'"):
        serving(wide_steps="pad")
