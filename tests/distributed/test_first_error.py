"""An error that a rank has of its own is the one it raises, whatever becomes of telling the others."""

import pytest
import torch
import torch.distributed as dist

from oproj_pass import SiteMismatchError
from tests.support.models import decoder, rows

pytestmark = pytest.mark.distributed


def compile_on_rank_0_only():
    if dist.get_rank():
        return ""
    options = {"oproj_tensor_parallel_size": 2, "expected_sites": 3, "timeout": 2}
    with torch.inference_mode(), pytest.raises(SiteMismatchError) as raised:
        torch.compile(decoder(), backend="oproj_npu", options=options)(rows(3, 32))
    return str(raised.value)


def test_wins_over_a_group_that_cannot_be_formed(two_ranks):
    assert "expected_sites = 3, found 2" in two_ranks.run(compile_on_rank_0_only)[0]
