"""Whatever lies between a stored weight and its GEMM: the rewrite is exact, or there is a near miss."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from oproj_pass.errors import ConfigError
from oproj_pass.passes import find_projections
from oproj_pass.passes.gemm import following as contraction
from tests.support.traced import attend, names_of, on_all_ranks, traced
from tests.support.traced import search as search_traced

SIZE = 8

items = st.one_of(
    st.sampled_from([slice(None), slice(0, None), slice(None, SIZE), slice(None, 4), slice(1, None)]),
    st.sampled_from([slice(None, None, 2), slice(-4, None), Ellipsis, None, True, 0, -1, [0, 1], [[0], [1]]]),
    st.sampled_from(["index", "scale"]),
)
dims, sizes = st.integers(-3, 2), st.sampled_from([-1, 1, 2, 4, 8])
steps = st.one_of(
    st.tuples(st.just("index"), st.one_of(items, st.lists(items, min_size=1, max_size=3).map(tuple))),
    st.tuples(st.just("t")),
    st.tuples(st.just("getattr"), st.sampled_from(["T", "mT", "H", "data", "real"])),
    st.tuples(st.just("transpose"), dims, dims),
    st.tuples(st.just("permute"), st.permutations(range(3))),
    st.tuples(st.just("unsqueeze"), dims),
    st.tuples(st.just("squeeze"), dims),
    st.tuples(st.sampled_from(["view", "reshape"]), st.lists(sizes, min_size=2, max_size=3)),
    st.tuples(st.just("flatten"), dims, dims),
    st.tuples(st.just("unflatten"), dims, st.sampled_from([(2, 4), (-1, 2), (4, 2), (1, 8)])),
    st.tuples(st.just("expand"), st.lists(st.sampled_from([-1, 2, 8]), min_size=2, max_size=3)),
    st.tuples(st.just("repeat_interleave"), st.sampled_from([1, 2, 4, 8]), dims),
    st.tuples(st.just("index_select"), dims, st.just("index")),
    st.tuples(st.just("select"), dims, st.integers(0, 1)),
    st.tuples(st.just("narrow"), dims, st.just(0), st.sampled_from([4, 8])),
    st.tuples(st.sampled_from(["cat", "stack", "twice"]), dims),
    st.tuples(st.sampled_from(["flip", "roll", "sum"]), dims),
    st.tuples(st.sampled_from(["float", "double", "contiguous", "clone", "abs", "view_as", "itself"])),
    st.tuples(st.sampled_from(["mul", "add", "mul_", "pick"]), st.sampled_from(["scale", "column", "index"])),
)  # fmt: skip


def step(value, name, arguments, inputs):
    given = [
        inputs.get(argument, argument) if isinstance(argument, str) else argument for argument in arguments
    ]
    if name == "index":
        (index,) = arguments
        named = (
            [inputs[item] if isinstance(item, str) else item for item in index]
            if isinstance(index, tuple)
            else None
        )
        return value[
            tuple(named)
            if named is not None
            else inputs.get(index, index)
            if isinstance(index, str)
            else index
        ]
    if name == "getattr":
        return getattr(value, arguments[0])
    if name in ("cat", "stack"):
        return getattr(torch, name)([value, value * 2], *given)
    if name == "twice":
        return value + value.transpose(given[0], 0)
    if name == "sum":
        return value / value.sum(given[0], keepdim=True)
    if name == "roll":
        return value.roll(1, given[0])
    if name == "flip":
        return value.flip(given[0])
    if name == "view_as":
        return value.reshape(-1).view_as(inputs["weight"])
    if name == "itself":
        return value * inputs["weight"]
    if name == "pick":
        return value * inputs["weight"][inputs["index"]]
    return getattr(value, name)(*given)


def projection(chain, form):
    def function(x, weight, scale, column, index):
        inputs = {"weight": weight, "scale": scale, "column": column, "index": index}
        operand = weight
        for name, *arguments in chain:
            operand = step(operand, name, arguments, inputs)
        operand = operand.to(torch.float32)
        y = attend(x)
        return F.linear(y, operand) if form == "linear" else torch.matmul(y, operand)

    return function


def stored():
    return (
        torch.randn(SIZE, SIZE),
        torch.rand(SIZE) + 0.5,
        torch.rand(SIZE, 1) + 0.5,
        torch.arange(SIZE).flip(0),
    )


@settings(deadline=None, max_examples=40)
@given(st.lists(steps, max_size=4), st.sampled_from(["linear", "matmul"]))
def test_a_weight_on_its_way_to_the_gemm_is_followed_exactly_or_left_alone(chain, form):
    function, weights = projection(chain, form), stored()
    xs = [(torch.randn(3, SIZE),) for _ in range(2)]
    try:
        expected = [function(*x, *(weight.clone() for weight in weights)) for x in xs]
    except Exception:
        assume(False)
    assume(expected[0].dim() == 2 and expected[0].shape[0] == 3)
    check_parity(function, weights, xs, expected)


def check_parity(function, weights, xs, expected):
    gm = traced(function, *xs[0], *weights)
    sites, misses = find_projections(gm, parameters=names_of(gm, weights))
    assert len(sites) + len(misses) == 1
    if sites:
        try:
            results, _, _ = on_all_ranks(function, xs, *weights)
        except ConfigError:
            return
        for y, whole in zip(results, expected, strict=True):
            torch.testing.assert_close(y, whole, rtol=1e-3, atol=1e-3)


FOLLOWED = {
    "an added dimension that is dropped": lambda w, i: w[None][0],
    "an ellipsis": lambda w, i: w[..., :],
    "rows picked by a tensor": lambda w, i: w[i],
    "rows picked through an ellipsis": lambda w, i: w[i, ...],
    "another dimension unflattened": lambda w, i: w.unflatten(0, (2, 4)).flatten(0, 1),
    "groups that nothing scales": lambda w, i: w.view(SIZE, 4, 2).reshape(SIZE, SIZE),
}
LEFT_ALONE = {
    "a list": (lambda w, i: w[[*range(SIZE)]], "with an index that is no slice, number or tensor"),
    "a list among slices": (lambda w, i: w[:, [*range(SIZE)]], "with an index that is no slice, number or"),
    "a truth value": (lambda w, i: w[True][0], "with an index that is no slice, number or tensor"),
    "features picked by a tensor": (lambda w, i: w[:, i], "picks its input features by an index"),
    "features picked along a dimension": (
        lambda w, i: w.index_select(1, i),
        "picks its input features by an",
    ),
    "two indices": (lambda w, i: w[i[:, None], i], "by several indices"),
    "itself, picked": (lambda w, i: w + w[:, i], "is also read whole by `getitem"),
    "itself, transposed": (lambda w, i: w + w.t(), "along two dimensions"),
    "the shape of another": (lambda w, i: w.flatten().view_as(w), "through which K cannot be followed"),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_follows(name):
    function, weights = indexed(FOLLOWED[name])
    xs = [(torch.randn(3, SIZE),) for _ in range(2)]
    results, sites, misses = on_all_ranks(function, xs, *weights)
    assert (len(sites), misses) == (1, ())
    for y, (x,) in zip(results, xs, strict=True):
        torch.testing.assert_close(y, function(x, *weights), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_leaves_alone(name):
    path, reason = LEFT_ALONE[name]
    function, weights = indexed(path)
    sites, (miss,) = search_traced(function, (torch.randn(3, SIZE),), *weights)
    assert sites == []
    assert miss.reason.startswith("has a weight that ")
    assert reason in miss.reason


def indexed(path):
    stored = torch.randn(SIZE, SIZE), torch.randperm(SIZE)
    return lambda x, weight, index: F.linear(attend(x), path(weight, index)), stored


def test_parity_fails_when_a_whole_reader_is_overlooked(monkeypatch):
    """What the search refuses would be wrong indeed."""
    monkeypatch.setattr(contraction, "_require_no_whole_reader", lambda *_: None)

    def function(x, weight, index):
        return attend(x) @ (weight + weight[index])

    stored = torch.randn(SIZE, SIZE), torch.arange(SIZE) % 4
    xs = [(torch.randn(3, SIZE),) for _ in range(2)]
    results, sites, _ = on_all_ranks(function, xs, *stored)
    assert len(sites) == 1
    errors = [(y - function(x, *stored)).abs().max() for y, (x,) in zip(results, xs, strict=True)]
    assert max(errors) > 1e-2


def test_refuses_to_part_a_group_that_only_a_view_makes():
    function, weights = indexed(lambda w, i: w.view(SIZE, 2, 4).reshape(SIZE, SIZE))
    (site,), _ = search_traced(function, (torch.randn(3, SIZE),), *weights)
    assert (site.gemm.k.unit, site.gemm.k.parts) == (4, 2)


class Indexed(nn.Module):
    def __init__(self, *index):
        super().__init__()
        self.weight, self.index = nn.Parameter(torch.randn(SIZE, SIZE)), index

    def forward(self, x):
        return x + F.linear(attend(x), self.weight[self.index])


def test_takes_or_leaves_every_index_that_dynamo_captures(search):
    rows = [*range(SIZE)]
    model = nn.Sequential(
        Indexed(rows),
        Indexed(slice(None), rows),
        Indexed(None, 0),
        Indexed(..., slice(None)),
        Indexed(torch.tensor(rows)),
    )
    found = search(model, torch.randn(3, SIZE))
    assert found.paths == ["2", "3", "4"]
    assert sorted(found.missed) == ["0", "1"]
