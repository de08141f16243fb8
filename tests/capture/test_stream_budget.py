import pytest

from oproj_pass.capture import StreamShape
from oproj_pass.errors import ConfigError

DEEPSEEK = {"num_layers": 61, "data_parallel_size": 8, "is_moe": True, "enable_expert_parallel": True}


@pytest.mark.parametrize(("aiv", "graphs"), [(True, 7), (False, 9)])
def test_deepseek_over_eight_ranks(aiv, graphs):
    assert StreamShape(**DEEPSEEK, aiv_expansion=aiv).max_graphs(51) == graphs


@pytest.mark.parametrize(
    "more",
    [
        {"num_draft_layers": 1},
        {"tensor_parallel_size": 2},
        {"multistream_shared_expert": True, "aiv_expansion": True},
        {"cudagraph_mode": "FULL_AND_PIECEWISE"},
        {"prefill_context_parallel_size": 2},
        {"decode_context_parallel_size": 2},
    ],
    ids=lambda more: next(iter(more)),
)
def test_everything_that_holds_streams_lowers_the_limit(more):
    plain = {**DEEPSEEK, "num_layers": 4, "aiv_expansion": more.get("aiv_expansion", False)}
    assert StreamShape(**{**plain, **more}).max_graphs(51) < StreamShape(**plain).max_graphs(51)


def test_a_dense_model_gives_up_one_graph_of_streams_under_aiv():
    # 1800 streams, 10 pieces, 2 streams a piece: 90 graphs, one of them spent.
    assert StreamShape(9, tensor_parallel_size=2, aiv_expansion=True).max_graphs(51) == 89


@pytest.mark.parametrize("mode", ["FULL", "FULL_DECODE_ONLY", "NONE"])
def test_graphs_of_one_piece_are_not_limited(mode):
    assert StreamShape(**DEEPSEEK, cudagraph_mode=mode).max_graphs(51) is None


def test_one_graph_is_always_left():
    assert StreamShape(2000, data_parallel_size=2, tensor_parallel_size=2).max_graphs(51) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers=0 must be at least 1"),
        ({"data_parallel_size": "8"}, "data_parallel_size='8' must be an integer"),
        ({"is_moe": False}, "enable_expert_parallel=True needs an MoE model"),
        ({"cudagraph_mode": "full"}, "cudagraph_mode='full' is unknown"),
    ],
)
def test_refuses_a_shape_it_cannot_count(change, message):
    with pytest.raises(ConfigError, match=message):
        StreamShape(**{**DEEPSEEK, **change})
