"""An exchange of fixed capacity: ranks bring what they like, and each gets its own rows back."""

import pytest
import torch

from tests.support.models import decoder, rows

pytestmark = pytest.mark.distributed

CAPACITY, HIDDEN = 24, 32


def largest_error(row_counts, capacity, dynamic):
    """The largest difference to the unsharded model over steps of which each rank brings its own rows."""
    model, reference = decoder(layers=1), decoder(layers=1)
    options = {"oproj_tensor_parallel_size": 2, "capacity": capacity}
    errors = []
    with torch.inference_mode():
        compiled = torch.compile(model, backend="oproj_npu", options=options, dynamic=dynamic, fullgraph=True)
        for counts in row_counts:
            x = rows(*counts[torch.distributed.get_rank()], HIDDEN)
            expected = reference(x)
            errors.append(((compiled(x) - expected).abs().max() / expected.abs().max()).item())
    return max(errors)


def test_ranks_with_unequal_rows_compute_what_the_unsharded_model_does(two_ranks):
    steps = [((1, 3), (2, 5)), ((4, 6), (1, 1)), ((2, 7), (2, 7))]
    assert max(two_ranks.run(largest_error, steps, CAPACITY, True)) < 1e-5


def test_static_row_counts_may_differ_too(two_ranks):
    assert max(two_ranks.run(largest_error, [((1, 3), (2, 5))], CAPACITY, False)) < 1e-5


def test_refuses_a_step_beyond_the_capacity(two_ranks):
    outcomes = two_ranks.outcomes(largest_error, [((1, 4), (1, 4)), ((5, 5), (5, 5))], CAPACITY, True)
    for kind, text in outcomes:
        assert kind == "error"
        assert "ConfigError: layers.0" in text
        assert "a step brings 25 rows, capacity = 24" in text
