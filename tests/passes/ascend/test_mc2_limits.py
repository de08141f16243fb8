"""A product is fused exactly where every limit of the chip holds; each violated limit has its own reason."""

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oproj_pass.passes.ascend.mc2_limits import FEATURES, GENERATIONS, Device, Product, refusal, release_key

CHIPS = {"Atlas A2": "Ascend910B3", "Atlas A3": "Ascend910_9391", "Ascend 950": "Ascend950PR_9599"}
ALLOWED = Product(
    world_size=4,
    rows=64,
    in_features=2048,
    out_features=7168,
    input_dtype=torch.bfloat16,
    weight_dtype=torch.bfloat16,
)
VIOLATIONS = {
    "ranks, not over 3": {"world_size": 3, "rows": 63},
    "rows cannot be divided": {"rows": 63},
    "part of K must lie in [256, 65535), found 255": {"in_features": 255},
    "part of K must lie in [256, 65535), found 65535": {"in_features": 65535},
    "found float32 and float32": {"input_dtype": torch.float32, "weight_dtype": torch.float32},
    "found float16 and bfloat16": {"input_dtype": torch.float16},
    "is not contiguous": {"contiguous_input": False},
}


@pytest.fixture(params=GENERATIONS, ids=lambda generation: generation.name)
def generation(request):
    return request.param


@pytest.fixture
def device(generation):
    return Device(CHIPS[generation.name], "9.1.0")


def test_allows_what_every_limit_allows(device):
    assert refusal(ALLOWED, device) is None


@pytest.mark.parametrize("reason", VIOLATIONS)
def test_gives_each_violated_limit_its_own_reason(device, reason):
    found = refusal(replace(ALLOWED, **VIOLATIONS[reason]), device)
    assert reason in found
    assert sum(other in found for other in VIOLATIONS) == 1


@pytest.mark.parametrize(
    ("soc", "allowed"),
    [
        ("Ascend910B1", [2, 4, 8]),
        ("Ascend910_9362", [2, 4, 8, 16]),
        ("Ascend950DT_9571", [2, 4, 8, 16, 32, 64]),
        ("Ascend910_9599", [2, 4, 8, 16, 32, 64]),
    ],
)
def test_allows_the_group_sizes_of_each_chip(soc, allowed):
    sizes = [
        n
        for n in range(1, 130)
        if refusal(replace(ALLOWED, world_size=n, rows=n), Device(soc, "9.1.0")) is None
    ]
    assert sizes == allowed


@pytest.mark.parametrize(
    "soc", ["", "Ascend310P3", "Ascend910A", "Ascend910B", "Ascend910ProB", "Ascend1000"]
)
def test_refuses_a_chip_that_it_does_not_know(soc):
    assert f"the chip is {soc or 'unknown'}" in refusal(ALLOWED, Device(soc, "9.1.0"))


@pytest.mark.parametrize("cann", ["", "none", "7.0.0", "8.0.RC1"])
def test_refuses_software_without_the_operator(generation, cann):
    found = refusal(ALLOWED, Device(CHIPS[generation.name], cann))
    assert found == f"{generation.name} needs CANN {generation.cann} or newer, found {cann or 'no version'}"


def test_allows_the_oldest_release_with_the_operator(generation):
    assert refusal(ALLOWED, Device(CHIPS[generation.name], generation.cann)) is None


def test_orders_releases():
    releases = [
        "8.0.RC2",
        "8.0.RC3",
        "8.0.0",
        "8.0.1",
        "8.1.RC1.beta1",
        "8.2.RC1",
        "9.0.0",
        "9.1.0",
        "10.0.RC1",
    ]
    assert sorted(releases, key=release_key) == releases


def test_a2_alone_wants_one_communicator_for_all_fused_operators(generation, device):
    found = refusal(replace(ALLOWED, other_groups=frozenset({"tp"})), device)
    assert (found is not None) == (generation.name == "Atlas A2")
    assert found is None or "tp too" in found


def test_950_alone_bounds_what_is_reduced_at_once(generation, device):
    rows = 16 * 2**28 // (ALLOWED.out_features * 2) // 4 * 4
    assert refusal(replace(ALLOWED, rows=rows), device) is None
    found = refusal(replace(ALLOWED, rows=rows + 4), device)
    assert (found is not None) == (generation.name == "Ascend 950")
    assert found is None or "MiB" in found


PRODUCTS = st.builds(
    Product,
    world_size=st.sampled_from([1, 2, 3, 4, 6, 8, 16, 32, 64, 128]),
    rows=st.integers(1, 600),
    in_features=st.sampled_from([1, 255, 256, 2048, 65534, 65535]) | st.integers(1, 70000),
    out_features=st.sampled_from([64, 7168]),
    input_dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.int8]),
    weight_dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.int8]),
    contiguous_input=st.booleans(),
    other_groups=st.sampled_from([frozenset(), frozenset({"tp"})]),
)
DEVICES = st.builds(
    Device,
    soc=st.sampled_from([*CHIPS.values(), "Ascend310P3", ""]),
    cann=st.sampled_from(["", "7.0.0", "8.0.RC1", "8.0.RC2", "8.5.0", "9.0.0", "9.1.0"]),
)


def holds(product, device):
    """Every limit, spelled without the table."""
    a2, a3 = re.match(r"Ascend910B\d", device.soc), device.soc.startswith("Ascend910_93")
    a5 = device.soc.startswith("Ascend950")
    old = ["", "7.0.0", "8.0.RC1"] + (["8.0.RC2", "8.5.0"] if a5 else [])
    largest = 8 if a2 else 16 if a3 else 64 if a5 else 0
    size = product.world_size
    return (
        device.cann not in old
        and 2 <= size <= largest
        and size & (size - 1) == 0
        and product.rows % size == 0
        and product.input_dtype == product.weight_dtype
        and product.input_dtype in (torch.float16, torch.bfloat16)
        and FEATURES.start <= product.in_features < FEATURES.stop
        and product.contiguous_input
        and not (a2 and product.other_groups)
    )


@settings(deadline=None)
@given(PRODUCTS, DEVICES)
def test_allows_a_product_iff_every_limit_holds(product, device):
    assert (refusal(product, device) is None) == bool(holds(product, device))
