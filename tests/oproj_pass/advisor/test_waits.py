"""Ranks wait longer for each other the more they computed before: a calibrated table knows by how much."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from oproj_pass.advisor.collectives import Transfer, transfer_us
from oproj_pass.advisor.gemms import product_us
from oproj_pass.advisor.profile import CollectiveTable, load_profile
from oproj_pass.advisor.step_time import step_difference
from oproj_pass.advisor.workload import EXCHANGES, Shape

SMALL, LARGE = 1024, 1_048_576
TABLE = CollectiveTable(
    nbytes=(SMALL, LARGE),
    us={2: (1000.0, 1600.0), 4: (1500.0, 2500.0)},
    behind_us=(100.0, 1000.0, 5000.0),
    smallest_us={2: (200.0, 600.0, 1000.0), 4: (400.0, 900.0, 1500.0)},
    error=0.1,
    source="made up for tests",
)
ROW = EXCHANGES["oproj"][0]
SHAPE = Shape("oproj", 1024, 2048, 4, 4, 4, "32bit")


@pytest.fixture
def profile():
    tables = dict.fromkeys(("all_to_all", "reduce_scatter", "all_gather"), TABLE)
    return load_profile("cpu").model_copy(update={"collectives": tables})


def us(profile, nbytes, behind_us=None, size=2):
    return transfer_us(profile, Transfer("all_to_all", size, nbytes), behind_us)[0].value


@pytest.mark.parametrize("size", [2, 4])
def test_behind_less_a_message_takes_less_by_what_the_smallest_does(profile, size):
    less = TABLE.smallest_us[size][-1] - TABLE.smallest_us[size][1]
    assert us(profile, LARGE, 1000.0, size) == pytest.approx(TABLE.us[size][1] - less)
    assert us(profile, SMALL, 1000.0, size) == pytest.approx(TABLE.smallest_us[size][1])


@pytest.mark.parametrize("behind_us", [None, 5000.0, 50_000.0])
def test_behind_as_much_as_it_was_measured_behind_and_by_default_it_is_the_table(profile, behind_us):
    assert us(profile, LARGE, behind_us) == TABLE.us[2][1]


@pytest.mark.parametrize("behind_us", [0.0, 1.0, 100.0])
def test_behind_next_to_nothing_it_is_the_least_that_was_measured(profile, behind_us):
    assert us(profile, SMALL, behind_us) == pytest.approx(200.0)


def test_a_large_message_is_never_sooner_there_than_the_smallest(profile):
    noisy = TABLE.model_copy(update={"us": {2: (1000.0, 900.0)}, "smallest_us": {2: (200.0, 950.0, 1000.0)}})
    tables = dict.fromkeys(profile.collectives, noisy)
    profile = profile.model_copy(update={"collectives": tables})
    assert us(profile, LARGE, 1000.0) == pytest.approx(950.0)


def test_a_table_that_does_not_know_it_is_the_same_behind_anything():
    profile = load_profile("h200")
    assert us(profile, LARGE, 10.0) == us(profile, LARGE)


def test_a_site_s_own_product_stands_in_front_of_its_exchanges(profile):
    step = {
        between: step_difference(profile, [SHAPE], ROW, size=2, tokens=4, between_us=between)
        for between in (None, 0.0, 700.0)
    }
    (product,) = ROW.work(SHAPE, 4, 2).products
    own = product_us(profile, product, "vllm")[0].value
    scatter, sums = ROW.work(SHAPE, 4, 2).transfers
    expected = sum(transfer_us(profile, transfer, own)[0].value for transfer in (scatter, sums))
    copies = step[None].exchange.value - sum(transfer_us(profile, x)[0].value for x in (scatter, sums)) / 1e3
    assert step[0.0].exchange.value == pytest.approx(expected / 1e3 + copies)
    assert step[0.0].exchange.value < step[700.0].exchange.value < step[None].exchange.value
    assert step[0.0].saved == step[None].saved


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"behind_us": (1000.0, 100.0, 5000.0)}, "ascend"),
        ({"behind_us": (0.0, 100.0, 5000.0)}, "above 0"),
        ({"behind_us": ()}, "none without behind_us"),
        ({"smallest_us": {2: (200.0, 600.0, 1000.0)}}, "each number of ranks"),
        ({"smallest_us": {2: (200.0, 600.0), 4: (400.0, 900.0)}}, "3 times above 0"),
        ({"smallest_us": {2: (200.0, 600.0, 0.0), 4: (400.0, 900.0, 1500.0)}}, "3 times above 0"),
    ],
)
def test_refuses_a_table_that_is_not_complete(changed, told):
    with pytest.raises(ValidationError, match=told):
        CollectiveTable.model_validate(TABLE.model_dump() | changed)


def test_more_sites_wait_as_often(profile):
    one, two = (
        step_difference(profile, [replace(SHAPE, count=count)], ROW, size=2, tokens=4, between_us=0.0)
        for count in (1, 2)
    )
    assert two.exchange.value == pytest.approx(2 * one.exchange.value)
