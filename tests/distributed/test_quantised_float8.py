"""float8 projections, sharded on real ranks: sent as bytes, exact before the sum, never summed as float8."""

import pytest
import torch

from tests.support import quantised
from tests.support.quantised_ranks import ROWS, rows, sharded

pytestmark = pytest.mark.distributed

STATIC = [quantised.ScaledStatic]
ROW = [quantised.ScaledTensor, quantised.ScaledRow, quantised.ScaledRowNamed]
BLOCK = [quantised.ScaledBlock]
FLOAT8 = [*STATIC, *ROW, *BLOCK]


def run(scheme, size, outlier=1.0, **options):
    """One step; a scheme with blocks has one block of features a rank at four ranks."""
    features = 512 if scheme in BLOCK else 64
    module = {"features": features, "hidden": 160} if scheme in BLOCK else {}
    return sharded(
        scheme, rows(size, features=features, outlier=outlier), module_options=module, **options
    )  # fmt: skip


def all_facts(size):
    return {scheme.__name__: run(scheme, size, outlier=100.0) for scheme in FLOAT8}


@pytest.fixture(scope="module", params=[2, 4])
def facts(request, two_ranks, four_ranks):
    pool = two_ranks if request.param == 2 else four_ranks
    return pool.run(all_facts, request.param, timeout=300)


@pytest.mark.parametrize("scheme", FLOAT8)
def test_equals_the_unsharded_projection_bit_by_bit_until_the_sum(facts, scheme):
    """Rank 0 brings activations 100 times as large, so every rank has scales of its own."""
    for by_scheme in facts:
        found = by_scheme[scheme.__name__]
        assert found.payload
        assert found.scales
        assert found.partial


@pytest.mark.parametrize("scheme", FLOAT8)
def test_adds_up_to_the_unsharded_result(facts, scheme):
    for by_scheme in facts:
        assert by_scheme[scheme.__name__].error < 4 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("scheme", FLOAT8)
def test_keeps_one_slice_of_the_weight_and_of_scales_along_its_features(facts, scheme):
    expected = {"o_proj.weight", "o_proj.scale"} if scheme in BLOCK else {"o_proj.weight"}
    for by_scheme in facts:
        weights = by_scheme[scheme.__name__].weights
        assert weights.keys() == expected
        assert all(kept * len(facts) == full for full, kept in weights.values())


SABOTAGES = [
    *((scheme, how) for scheme in FLOAT8 for how in ("no exchange", "no reduction", "wrong slice")),
    *((scheme, "own scales") for scheme in ROW),
    *((scheme, "bias on every rank") for scheme in FLOAT8),
]


def sabotaged(cases):
    return {(scheme.__name__, how): run(scheme, 2, outlier=100.0, sabotage=how) for scheme, how in cases}


@pytest.fixture(scope="module")
def sabotaged_facts(two_ranks):
    return two_ranks.run(sabotaged, SABOTAGES, timeout=300)


@pytest.mark.parametrize(("scheme", "how"), SABOTAGES)
def test_a_sabotaged_exchange_shows(sabotaged_facts, scheme, how):
    """The negative control of every test above."""
    found = [by_case[scheme.__name__, how] for by_case in sabotaged_facts]
    assert max(facts.error for facts in found) > 1e-2
    if how != "no reduction":
        assert not all(facts.payload and facts.scales and facts.partial for facts in found)


def padded_with(scheme, fill):
    plain, padded = rows(2), rows(2)
    for rank, x in padded.items():
        padded[rank] = torch.cat([x, torch.full((5, x.shape[-1]), fill, dtype=x.dtype)])
    return torch.equal(sharded(scheme, plain).y, sharded(scheme, padded).y[:ROWS])


@pytest.mark.parametrize("fill", [float("nan"), 1e30])
@pytest.mark.parametrize("scheme", [*STATIC, quantised.ScaledRow])
def test_pad_rows_change_no_real_row(two_ranks, scheme, fill):
    assert all(two_ranks.run(padded_with, scheme, fill))


def with_a_spoilt_peer(scheme, fill):
    plain, spoilt = rows(2), rows(2)
    spoilt[1] = torch.full_like(spoilt[1], fill)
    return torch.equal(sharded(scheme, plain).y, sharded(scheme, spoilt).y)


@pytest.mark.parametrize("fill", [float("nan"), 1e30])
def test_a_peers_rows_change_no_row_of_mine_though_all_rows_share_a_scale(two_ranks, fill):
    mine, theirs = two_ranks.run(with_a_spoilt_peer, quantised.ScaledTensor, fill)
    assert mine
    assert not theirs


def with_option(options):
    return {scheme.__name__: run(scheme, 2, options=options) for scheme in FLOAT8}


@pytest.mark.parametrize("options", [{"reduce_dtype": "float32"}, {"capacity": 5}])
def test_obeys_the_exchanges_options(two_ranks, options):
    for by_scheme in two_ranks.run(with_option, options):
        for found in by_scheme.values():
            assert found.y.dtype == torch.bfloat16
            assert found.error < 4 * torch.finfo(torch.bfloat16).eps


def float8_product():
    class Rounded(quantised.ScaledStatic):
        dtype = torch.float8_e4m3fn

        def multiply(self, q, weight, bias):
            self.dtype = torch.float8_e4m3fn
            return super().multiply(q, weight, None)

    return run(Rounded, 2, options={"expected_sites": 0})


def test_refuses_to_sum_a_product_rounded_to_float8(two_ranks):
    for _, text in two_ranks.outcomes(float8_product):
        assert "has its product rounded to torch.float8_e4m3fn, which cannot be summed" in text
