"""The two Ascend compilers on CPU tensors over gloo: the way to debug a sharded model, and real numbers."""

from unittest.mock import patch

import pytest
import torch

from oproj_pass.weights.placement import Placement
from tests.ascend.support.models import decoder
from tests.ascend.support.process import PRELOAD, stub_environment
from tests.support.ranks import RankPool

pytestmark = pytest.mark.distributed
EAGER = {"npugraph_ex": {"force_eager": True}, "npu": {"debug.run_eagerly": True}}


def next_ranks_slice(placement, full):
    part = full.shape[placement.dim] // placement.group.size
    return full.narrow(placement.dim, (placement.group.rank + 1) % placement.group.size * part, part)


def errors_of(inner):
    """The largest difference to the unsharded model relative to its largest value, and with a wrong slice."""
    right = error_of(inner, (5, 3))
    torch._dynamo.reset()
    with patch.object(Placement, "part_of", next_ranks_slice):
        return right, error_of(inner, (5,))


@torch.inference_mode()
def error_of(inner, sizes):
    model, reference = decoder(), decoder()
    options = {"oproj_tensor_parallel_size": 2, "inner_backend": inner, "inner_options": EAGER[inner]}
    compiled = torch.compile(model, backend="oproj_npu", options=options, fullgraph=True)
    errors = []
    for rows in sizes:
        x = torch.randn(rows, 32)
        expected = reference(x)
        errors.append(((compiled(x) - expected).abs().max() / expected.abs().max()).item())
    return max(errors)


@pytest.fixture(scope="module", params=list(EAGER))
def errors(request, cann_stub):
    pool = RankPool(2, stub_environment(cann_stub), PRELOAD)  # of its own: one compiler a process
    yield pool.run(errors_of, request.param, timeout=280)
    pool.close()


def test_equals_the_unsharded_model(errors):
    assert max(right for right, _ in errors) < 1e-5


def test_a_wrong_slice_shows(errors):
    assert min(wrong for _, wrong in errors) > 1e-2
