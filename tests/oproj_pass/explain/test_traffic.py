"""The formulas: against the rewritten graph's own tensors, and the numbers of the project's design."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oproj_pass.explanation import explain
from oproj_pass.explanation.rewrite import rewrite_graph
from oproj_pass.explanation.traffic import (
    COMMUNICATION_BUFFER_NBYTES,
    break_even_layers,
    saved_nbytes,
)
from oproj_pass.passes import STRATEGIES
from oproj_pass.passes.traffic import TokenSizes
from tests.support.models import decoder

HIDDEN, K = 7168, 16384  # DeepSeek-V3: 128 heads of 128
GIB = 2**30


@pytest.mark.parametrize(("itemsize", "layer"), [(1, 0.109), (2, 0.219)])
def test_gives_the_bytes_of_a_deepseek_v3_layer(itemsize, layer):
    assert HIDDEN * K * itemsize / GIB == pytest.approx(layer, abs=5e-4)


@pytest.mark.parametrize(
    ("layers", "size", "itemsize", "gross", "net"),
    [(6, 2, 1, 0.33, None), (6, 4, 1, 0.49, None), (61, 8, 1, 5.84, 5.4), (61, 8, 2, 11.68, 11.2)],
)
def test_gives_the_capacity_table(layers, size, itemsize, gross, net):
    saved = layers * saved_nbytes(HIDDEN * K * itemsize, size)
    assert saved / GIB == pytest.approx(gross, abs=6e-3)
    if net is not None:
        assert (saved - COMMUNICATION_BUFFER_NBYTES) / GIB == pytest.approx(net, abs=6e-2)


@pytest.mark.parametrize(("size", "layers"), [(2, 7.7), (8, 4.4)])
def test_gives_the_break_even(size, layers):
    assert break_even_layers(HIDDEN * K, size) == pytest.approx(layers, abs=5e-2)


@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 64), st.integers(1, 16))
def test_counts_every_value_that_leaves_a_rank(size, part, hidden, tokens):
    in_features = size * part
    scattered = [rank for rank in range(size) for _ in range(tokens * part) if rank != 0]
    reduced = [rank for rank in range(size) for _ in range(tokens * hidden) if rank != 0]
    token = TokenSizes(in_features, hidden, input_itemsize=1, sum_itemsize=2, product_itemsize=2)
    sent = STRATEGIES["row"].sent_nbytes(token, size)
    assert tokens * sent == len(scattered) + 2 * len(reduced)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_agrees_with_the_tensors_of_the_rewritten_graph(size):
    tokens, model = 5, decoder(layers=2, hidden=24, dtype=torch.bfloat16)
    x = torch.randn(tokens, 24, dtype=torch.bfloat16)
    graph = rewrite_graph(model, x, size=size).state(1)
    brought = 0
    for node in graph.nodes:
        if "all_to_all_single" in node.target or "reduce_scatter_tensor" in node.target:
            brought += math.prod(graph.by_name[node.inputs[0]].shape) * 2
    assert brought * (size - 1) == size * tokens * explain(model, x).sent_nbytes(size)
