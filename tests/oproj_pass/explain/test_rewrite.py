"""A model's graph before and after sharding, with no process group."""

import pytest
import torch
import torch.distributed as dist

from oproj_pass.errors import ConfigError
from oproj_pass.explanation.rewrite import rewrite_graph
from tests.support.models import Decoder, decoder


def test_shows_the_collectives_of_every_layer():
    history = rewrite_graph(decoder(layers=3), torch.randn(5, 32), size=4)
    assert not dist.is_initialized()
    collectives = history.diff(0, 1).summary()["collectives"]
    assert {name: count["after"] for name, count in collectives.items()} == {
        "all_to_all_single": 3,
        "reduce_scatter_tensor": 3,
    }


def test_needs_no_weights_and_keeps_the_model():
    with torch.device("meta"):
        model, x = Decoder(layers=1), torch.empty(5, 32)
    rewrite_graph(model, x, size=2)
    assert model(x).shape == (5, 32)
    assert model.layers[0].attn.o_proj.weight.shape == (32, 32)


def test_refuses_a_size_that_does_not_divide():
    with pytest.raises(ConfigError, match=r"layers\.0\.attn\.o_proj: K = 32 .* cannot be split over .* 3"):
        rewrite_graph(decoder(layers=1), torch.randn(5, 32), size=3)


def test_refuses_a_model_of_several_graphs_and_names_the_break():
    class TwoGraphs(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = decoder(layers=1)

        def forward(self, x):
            x = self.decoder(x)
            torch._dynamo.graph_break()
            return x + 1

    with pytest.raises(ConfigError, match=r"TwoGraphs makes 2 graphs, required: one.*graph_break.*\.py:\d+"):
        rewrite_graph(TwoGraphs(), torch.randn(5, 32), size=2)
