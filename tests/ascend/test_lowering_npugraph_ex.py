"""npugraph_ex receives every strategy's collectives in order, around the products of a rank's parts.

On rank 2 of 4. Row sharding is the other Ascend tests'.
"""

import pytest

from tests.ascend.support.lowering import fake_world
from tests.support.grouped import GROUPS, RANK

HIDDEN, ROWS = 32, 6
LAYERS = 2
OPTIONS = {
    "column": {"oproj_tensor_parallel_size": 2, "strategy": "column"},
    "exchange": {"oproj_tensor_parallel_size": 2, "reduce": "exchange"},
    "grid": {"oproj_tensor_parallel_size": 4, "strategy": "grid"},
    "group": {"oproj_tensor_parallel_size": 2},
}
OF_A_LAYER = {
    "column": ["all_gather", "product", "all_to_all"],
    "exchange": ["all_to_all", "product", "all_to_all"],
    "grid": ["all_to_all", "all_gather", "product", "reduce_scatter", "all_to_all"],
    "group": ["all_to_all", "grouped product", "product", "reduce_scatter"],
}
PARTS = {
    "column": [(HIDDEN, HIDDEN // 2)],
    "exchange": [(HIDDEN // 2, HIDDEN)],
    "grid": [(HIDDEN // 2, HIDDEN // 2)],
    "group": [(GROUPS // 2, 16, RANK), (GROUPS * RANK // 2, HIDDEN)],
}
ALONG_K, ALONG_H = (0, 2), (2, 3)
RANKS = {
    "column": [(2, 3)] * 2,
    "exchange": [(2, 3)] * 2,
    "grid": [ALONG_K, ALONG_H, ALONG_K, ALONG_H],
    "group": [(2, 3)] * 2,
}
COMMUNICATES = {"all_to_all", "all_gather", "reduce_scatter"}


def receive_all():
    """The calls of each strategy's graph."""
    import torch

    from tests.ascend.support.calls import calls_by_backend
    from tests.ascend.support.grouped import Grouped
    from tests.ascend.support.models import decoder
    from tests.support.grouped import heads_of

    fake_world()
    found = {}
    for name, options in OPTIONS.items():
        torch._dynamo.reset()
        model, x = (Grouped(), heads_of(2, 3)) if name == "group" else (decoder(), torch.zeros(ROWS, HIDDEN))
        found[name] = calls_by_backend(model.requires_grad_(False).npu(), x.npu(), **options)
    return found


@pytest.fixture(scope="module")
def received(npu_process):
    return npu_process(receive_all, timeout=600)


@pytest.fixture(params=OPTIONS)
def of_strategy(request, received):
    return request.param, received.value[request.param]


def between(calls, first, last):
    """The collectives and products of each layer, from one kind of call to the next of another."""
    layers, inside = [], False
    for call in calls:
        if call.name == first and not inside:
            layers.append([])
            inside = True
        if inside and (call.name in COMMUNICATES or call.name.endswith("product")):
            layers[-1].append(call)
            inside = len(layers[-1]) == 1 or call.name != last
    return layers


def test_issues_the_strategys_collectives_and_products_layer_by_layer(of_strategy):
    name, calls = of_strategy
    layers = between(calls, OF_A_LAYER[name][0], OF_A_LAYER[name][-1])
    expected = 1 if name == "group" else LAYERS
    assert [[call.name for call in layer] for layer in layers] == [OF_A_LAYER[name]] * expected


def test_runs_over_the_ranks_of_the_strategys_groups(of_strategy):
    name, calls = of_strategy
    for layer in between(calls, OF_A_LAYER[name][0], OF_A_LAYER[name][-1]):
        assert [call.ranks for call in layer if call.name in COMMUNICATES] == RANKS[name]


def test_multiplies_a_ranks_part_of_each_weight(of_strategy):
    name, calls = of_strategy
    for layer in between(calls, OF_A_LAYER[name][0], OF_A_LAYER[name][-1]):
        assert [call.operands[-1] for call in layer if call.name.endswith("product")] == PARTS[name]


def test_captures_each_graph_once(received):
    assert received.count("replay") == len(OPTIONS)
