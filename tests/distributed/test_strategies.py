"""A model sharded by any strategy computes what the unsharded one does, on real ranks, through the backend.

Many cases share one call of the ranks; what each strategy writes is tested in one process
(``tests/passes/strategies``).
"""

from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch

import oproj_pass
from oproj_pass.weights.placement import Placement
from tests.support import quantised
from tests.support.models import decoder, rows
from tests.support.quantised import ATTENTION, model

pytestmark = pytest.mark.distributed

EPS = torch.finfo(torch.bfloat16).eps
INTEGER = [quantised.W8A8Dynamic, quantised.W8A8Static]
SCHEMES = [*INTEGER, quantised.ScaledRow]


def outcome(module, reference, x, options, wrong_part=False):
    """How far from the unsharded result, what part of the weights is kept, and what is gathered again."""
    torch._dynamo.reset()
    settings = {"oproj_tensor_parallel_size": torch.distributed.get_world_size(), **options}
    expected = reference(x)
    sabotage = patch.object(Placement, "part_of", next_ranks_part) if wrong_part else nullcontext()
    with torch.inference_mode(), sabotage:
        y = torch.compile(module, backend="oproj_npu", options=settings, fullgraph=True)(x)
    report = oproj_pass.shard_report(module)
    full, whole = oproj_pass.full_state_dict(module), reference.state_dict()
    return {
        "error": ((y.double() - expected.double()).abs().max() / expected.double().abs().max()).item(),
        "equal": torch.equal(y, expected),
        "kept": report.kept_nbytes / report.full_nbytes,
        "restored": all(torch.equal(as_bytes(full[name]), as_bytes(value)) for name, value in whole.items()),
    }


def as_bytes(tensor):
    return tensor.contiguous().view(torch.uint8)


def next_ranks_part(placement, full):
    for split, group in zip(placement.splits, placement.mesh, strict=True):
        full = split.part_of(full, (group.rank + 1) % group.size, group.size)
    return full


def every_case(cases):
    return {
        name: outcome(*modules(kind, options), options, wrong_part)
        for name, (kind, options, wrong_part) in cases.items()
    }


def modules(kind, options):
    if kind == "decoder":
        dtype, layers = torch.bfloat16, 2 if isinstance(options.get("strategy"), dict) else 1
        return decoder(dtype, layers=layers), decoder(dtype, layers=layers), rows(2, 3, 32, dtype=dtype)
    return model(kind, hidden=32), model(kind, hidden=32), rows(3, 64, dtype=torch.bfloat16)


def by_name(strategies):
    """Every scheme by every strategy; of the negative controls one a strategy."""
    cases = {}
    for name, options in strategies.items():
        for kind in ("decoder", *SCHEMES):
            title = getattr(kind, "__name__", kind)
            own = {} if kind == "decoder" else {"attention_ops": ATTENTION}
            cases[title, name] = kind, options | own, False
        cases["wrong part", name] = "decoder", options, True
    return cases


TWO = {"column": {"strategy": "column"}, "exchange": {"reduce": "exchange"}, "auto": {"reduce": "auto"}}
FOUR = {
    "column": {"strategy": "column"},
    "grid": {"strategy": "grid"},
    "grid, exchange": {"strategy": "grid", "grid": (2, 2), "reduce": "exchange"},
    "by module": {"strategy": {"layers.0.*": "column", "oproj": "row", "o_proj": "grid"}},
}


@pytest.fixture(scope="module", params=[2, 4])
def outcomes(request, two_ranks, four_ranks):
    """By case, what each rank found."""
    pool, strategies = (two_ranks, TWO) if request.param == 2 else (four_ranks, FOUR)
    by_rank = pool.run(every_case, by_name(strategies), timeout=300)
    return request.param, {case: [found[case] for found in by_rank] for case in by_rank[0]}


def test_computes_what_the_unsharded_model_does(outcomes):
    _, by_case = outcomes
    for (kind, name), found in by_case.items():
        if kind != "wrong part":
            assert all(rank["error"] < 8 * EPS for rank in found), (kind, name, found)


def test_the_next_ranks_part_shows(outcomes):
    """The negative control."""
    _, by_case = outcomes
    for (kind, name), found in by_case.items():
        if kind == "wrong part":
            assert all(rank["error"] > 1e-2 for rank in found), (name, found)


def test_column_is_bit_equal_for_integer_products(outcomes):
    _, by_case = outcomes
    for (kind, name), found in by_case.items():
        if name == "column" and kind in {scheme.__name__ for scheme in INTEGER}:
            assert all(rank["equal"] for rank in found), kind


def test_keeps_one_part_of_every_cut_tensor_and_gathers_it_whole_again(outcomes):
    size, by_case = outcomes
    for (kind, name), found in by_case.items():
        if kind != "wrong part":
            assert all(rank["kept"] < 1.2 / size for rank in found), (
                kind,
                name,
                found,
            )  # a grid cuts biases once
            assert all(rank["restored"] for rank in found), (kind, name)
