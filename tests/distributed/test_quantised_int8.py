"""int8 projections, sharded on real ranks: exact before the sum, rounded as ever after it."""

import pytest
import torch

from tests.support import quantised
from tests.support.quantised_ranks import ROWS, rows, sharded

pytestmark = pytest.mark.distributed

DYNAMIC = [
    quantised.W8A8Dynamic, quantised.W8A8Smooth, quantised.W8A8Tensor, quantised.W8A8DynamicParameters,
]  # fmt: skip
STATIC = [quantised.W8A8Static, quantised.W8A8Packed]
INT8 = [*DYNAMIC, *STATIC, quantised.IntMM]
EXACT = {quantised.IntMM}


def all_facts(size, schemes, outlier=1.0, options=None):
    return {scheme.__name__: sharded(scheme, rows(size, outlier=outlier), options) for scheme in schemes}


@pytest.fixture(scope="module", params=[2, 4])
def facts(request, two_ranks, four_ranks):
    pool = two_ranks if request.param == 2 else four_ranks
    return pool.run(all_facts, request.param, INT8, 100.0, timeout=300)


@pytest.mark.parametrize("scheme", INT8)
def test_equals_the_unsharded_projection_bit_by_bit_until_the_sum(facts, scheme):
    """Rank 0 brings activations 100 times as large, so every rank has scales of its own."""
    for by_scheme in facts:
        found = by_scheme[scheme.__name__]
        assert found.payload
        assert found.scales
        assert found.partial


@pytest.mark.parametrize("scheme", INT8)
def test_adds_up_to_the_unsharded_result(facts, scheme):
    for by_scheme in facts:
        error = by_scheme[scheme.__name__].error
        assert error == 0 if scheme in EXACT else error < 4 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("scheme", INT8)
def test_keeps_one_slice_of_the_weight_and_nothing_else_of_it(facts, scheme):
    size = len(facts)
    for by_scheme in facts:
        ((path, (full, kept)),) = by_scheme[scheme.__name__].weights.items()
        assert path == "o_proj.weight"
        assert kept * size == full


def sabotaged(size, cases):
    return {
        (scheme.__name__, how): sharded(scheme, rows(size, outlier=100.0), sabotage=how)
        for scheme, how in cases
    }


SABOTAGES = [
    *((scheme, how) for scheme in INT8 for how in ("no exchange", "no reduction", "wrong slice")),
    *((scheme, "own scales") for scheme in DYNAMIC),
    *((scheme, "bias on every rank") for scheme in (quantised.W8A8Dynamic, *STATIC)),
]


@pytest.fixture(scope="module")
def sabotaged_facts(two_ranks):
    return two_ranks.run(sabotaged, 2, SABOTAGES, timeout=300)


@pytest.mark.parametrize(("scheme", "how"), SABOTAGES)
def test_a_sabotaged_exchange_shows(sabotaged_facts, scheme, how):
    """The negative control of every test above."""
    found = [by_case[scheme.__name__, how] for by_case in sabotaged_facts]
    assert max(facts.error for facts in found) > 1e-2
    if how != "no reduction":
        assert not all(facts.payload and facts.scales and facts.partial for facts in found)


def wire_nbytes(size):
    features = {"features": 1024}
    return {
        scheme.__name__: sharded(scheme, rows(size, features=1024), module_options=features).wire_nbytes
        for scheme in (quantised.W8A8Dynamic, quantised.W8A8Static)
    }


def test_sends_at_most_half_the_bytes_of_bfloat16(four_ranks):
    """Counted at the collectives before the product, the rows' scales among them."""
    bfloat16 = 1024 * 2 * 3 / 4
    for nbytes in four_ranks.run(wire_nbytes, 4):
        assert nbytes["W8A8Static"] == bfloat16 / 2
        assert bfloat16 / 2 < nbytes["W8A8Dynamic"] <= 0.52 * bfloat16


def padded_with(size, scheme, fill):
    plain, padded = rows(size), rows(size)
    for rank, x in padded.items():
        padded[rank] = torch.cat([x, torch.full((5, x.shape[-1]), fill, dtype=x.dtype)])
    return torch.equal(sharded(scheme, plain).y, sharded(scheme, padded).y[:ROWS])


@pytest.mark.parametrize("fill", [float("nan"), 1e30])
@pytest.mark.parametrize("scheme", [quantised.W8A8Dynamic, quantised.W8A8Static, quantised.IntMM])
def test_pad_rows_change_no_real_row(two_ranks, scheme, fill):
    assert all(two_ranks.run(padded_with, 2, scheme, fill))


def with_a_spoilt_peer(scheme, fill):
    plain, spoilt = rows(2), rows(2)
    spoilt[1] = torch.full_like(spoilt[1], fill)
    return torch.equal(sharded(scheme, plain).y, sharded(scheme, spoilt).y)


@pytest.mark.parametrize("fill", [float("nan"), 1e30])
@pytest.mark.parametrize("scheme", [quantised.W8A8Tensor, quantised.W8A8Dynamic])
def test_a_peers_rows_change_no_row_of_mine(two_ranks, scheme, fill):
    mine, theirs = two_ranks.run(with_a_spoilt_peer, scheme, fill)
    assert mine
    assert not theirs


def zero_weight_and_bias_100(scheme):
    bias = {"W8A8Static": (100 / 0.5, torch.int32)}.get(scheme.__name__, (100.0, torch.bfloat16))

    class Constant(scheme):
        def store(self, features, hidden):
            super().store(features, hidden)
            self.weight.zero_()
            self.scale.fill_(0.5)

        def store_bias(self, hidden):
            self.constant("bias", torch.full((hidden,), bias[0]).to(bias[1]))

    return sharded(Constant, rows(2)).y


@pytest.mark.parametrize("scheme", [quantised.W8A8Dynamic, quantised.W8A8Static, quantised.IntMM])
def test_adds_the_bias_once(two_ranks, scheme):
    for y in two_ranks.run(zero_weight_and_bias_100, scheme):
        assert torch.equal(y, torch.full_like(y, 100.0))


def with_options(options):
    return all_facts(2, [quantised.W8A8Smooth, quantised.W8A8Static, quantised.IntMM], 1.0, options)


@pytest.mark.parametrize("options", [{"reduce_dtype": "float32"}, {"capacity": 5}, {"check_uniform": True}])
def test_obeys_the_exchanges_options(two_ranks, options):
    for by_scheme in two_ranks.run(with_options, options):
        for name, found in by_scheme.items():
            assert found.y.dtype == torch.bfloat16
            assert found.error < 4 * torch.finfo(torch.bfloat16).eps
            assert name != "IntMM" or found.error == 0
