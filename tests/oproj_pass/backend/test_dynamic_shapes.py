"""Under ``dynamic=True`` the row count is a symbol, and no size of a weight's slice is."""

import pytest
import torch

from tests.support.fake import fake_world
from tests.support.models import Attention

ROWS = [16, 8, 12]  # 16 is also this rank's part of K: taken for a size of the slice, it would be specialised


@pytest.mark.parametrize("release_weights", [True, False])
def test_one_graph_serves_every_row_count(release_weights):
    attention = Attention(hidden=48, heads=4, head_dim=16, kind="explicit").requires_grad_(False)
    options = {"inner_backend": "aot_eager", "release_weights": release_weights}
    with fake_world(4), torch.inference_mode():
        step = torch.compile(attention, backend="oproj_npu", dynamic=True, fullgraph=True, options=options)
        for rows in ROWS:
            assert step(torch.randn(rows, 48)).shape == (rows, 48)
    assert len(torch._dynamo.eval_frame._debug_get_cache_entry_list(Attention.forward.__code__)) == 1
