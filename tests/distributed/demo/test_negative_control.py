"""A wrong slice must show, or the demonstration's equal tokens would prove nothing."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.distributed

TORCHRUN = (
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--local-addr",
    "127.0.0.1",
    "--nproc-per-node",
    "2",
)


def test_tokens_differ_and_the_run_fails_when_one_rank_holds_the_wrong_slice(run_demo, tiny_checkpoint):
    script = Path(__file__).with_name("wrong_slice.py")
    run = run_demo(*TORCHRUN, str(script), "--json", "--max-tokens", "4", "--model", str(tiny_checkpoint))
    assert run.status == 1, run.stderr
    assert not run.facts["tokens_equal"]
    assert not all(answer["equal"] for rank in run.facts["ranks"] for answer in rank["answers"])


def test_the_same_run_with_the_right_slices_succeeds(run_demo, tiny_checkpoint):
    options = ("-m", "oproj_pass.demo", "--json", "--max-tokens", "4", "--model", str(tiny_checkpoint))
    run = run_demo(*TORCHRUN, *options)
    assert run.status == 0, run.stderr
    assert run.facts["tokens_equal"]
