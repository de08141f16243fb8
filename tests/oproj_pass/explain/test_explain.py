"""What explain says of each attention of a model."""

from pathlib import Path

import pytest
import torch
from torch import nn

from oproj_pass.errors import ConfigError, WeightReleasedError
from oproj_pass.explanation import explain
from tests.support.fake import fake_world
from tests.support.models import Decoder, decoder


def paths(report):
    return [row.path for row in report.projections]


def missed(report):
    return {miss.path: miss.reason for miss in report.near_misses}


@pytest.mark.parametrize(
    ("projection", "gemm"), [("linear", "linear"), ("addmm", "addmm"), ("matmul", "matmul")]
)
def test_names_every_projection_with_its_form_and_shape(projection, gemm):
    report = explain(decoder(layers=3, hidden=24, projection=projection), torch.randn(5, 24))
    assert paths(report) == [f"layers.{i}.attn.o_proj" for i in range(3)]
    for row in report.projections:
        assert (row.gemm, row.out_features, row.in_features) == (gemm, 24, 32)
        assert (row.dtype, row.scheme, row.nbytes) == ("float32", "dense", 24 * 32 * 4)
    assert report.num_graphs == 1
    assert not report.graph_breaks


def test_needs_no_weights():
    with torch.device("meta"):
        model, x = Decoder(layers=2), torch.empty(5, 32)
    assert paths(explain(model, x)) == paths(explain(decoder(layers=2), torch.randn(5, 32)))


def test_names_the_layers_that_share_one_graph_across_graph_breaks():
    report = explain(decoder(layers=3, graph_breaks=True), torch.randn(5, 32))
    assert report.num_graphs < 3  # layers 1 and 2 run layer 0's graph again
    assert paths(report) == [f"layers.{i}.attn.o_proj" for i in range(3)]
    assert all(row.calls == 1 for row in report.projections)


def test_says_where_and_why_the_graph_breaks():
    (break_,) = set(explain(decoder(layers=2, graph_breaks=True), torch.randn(5, 32)).graph_breaks)
    path, _, line = break_.source.rpartition(":")
    assert "graph_break()" in Path(path).read_text().splitlines()[int(line) - 1]
    assert "graph_break" in break_.reason


def test_reports_an_attention_that_a_graph_break_cuts_off():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Decoder(layers=1).layers[0].attn
            self.attn.o_proj = BreaksFirst(32, 32)

        def forward(self, x):
            return self.attn(x)

    report = explain(Broken(), torch.randn(5, 32))
    assert paths(report) == []
    (reason,) = (miss.reason for miss in report.near_misses if miss.left_by_graph_break)
    assert "leaves the graph" in reason


class BreaksFirst(nn.Linear):
    def forward(self, x):
        torch._dynamo.graph_break()
        return super().forward(x)


def test_gives_the_reason_for_what_is_left_alone():
    report = explain(
        decoder(layers=3), torch.randn(5, 32), config={"exclude": "layers.1.*", "include": "layers.[12].*"}
    )
    assert paths(report) == ["layers.2.attn.o_proj"]
    assert missed(report) == {
        "layers.0.attn.o_proj": "matches no `include` glob",
        "layers.1.attn.o_proj": "matches an `exclude` glob",
    }
    assert all(miss.nbytes == 32 * 32 * 4 for miss in report.near_misses)


def test_counts_a_weight_of_several_layers_once():
    model = decoder(layers=3)
    for layer in model.layers[1:]:
        layer.attn.o_proj.weight = model.layers[0].attn.o_proj.weight
    report = explain(model, torch.randn(5, 32))
    assert report.full_nbytes == 32 * 32 * 4
    assert report.saved_nbytes(2) == 32 * 32 * 2
    assert report.sent_nbytes(2) == 3 * report.projections[0].sent_nbytes(2)
    first, *others = report.projections
    assert first.shares_weight_with is None
    assert {row.shares_weight_with for row in others} == {first.path}


@pytest.mark.parametrize("graph_breaks", [False, True])
def test_counts_every_call_of_a_looped_layer(graph_breaks):
    model = decoder(layers=1, graph_breaks=graph_breaks)
    model.layers.extend([model.layers[0]] * 2)
    report = explain(model, torch.randn(5, 32))
    assert sum(row.calls for row in report.projections) == 3
    assert report.saved_nbytes(2) == 32 * 32 * 2


@pytest.mark.parametrize("reader_first", [False, True])
def test_leaves_a_weight_alone_that_another_graph_reads_in_full(reader_first):
    class ReadAgain(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = decoder(layers=2)

        def forward(self, x):
            x = x + self.read(x) if reader_first else self.decoder(x)
            torch._dynamo.graph_break()
            return self.decoder(x) if reader_first else x + self.read(x)

        def read(self, x):
            return torch.mm(x, self.decoder.layers[1].attn.o_proj.weight)

    report = explain(ReadAgain(), torch.randn(5, 32))
    assert paths(report) == ["decoder.layers.0.attn.o_proj"]
    assert "another graph reads in full" in missed(report)["decoder.layers.1.attn.o_proj"]


def test_reduces_in_the_type_that_is_asked_for():
    model, x = decoder(layers=1, dtype=torch.bfloat16), torch.randn(5, 32, dtype=torch.bfloat16)
    (plain,) = explain(model, x).projections
    (widened,) = explain(model, x, config={"reduce_dtype": "float32"}).projections
    assert (plain.input_itemsize, plain.partial_itemsize) == (2, 2)
    assert (widened.input_itemsize, widened.partial_itemsize) == (2, 4)


def test_passes_keyword_arguments_on():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.decoder = decoder(layers=1)

        def forward(self, x, *, scale):
            return self.decoder(x) * scale

    assert paths(explain(Scaled(), torch.randn(5, 32), scale=2.0)) == ["decoder.layers.0.attn.o_proj"]


@pytest.mark.parametrize("size", [3, 5, 64])
def test_says_which_sizes_fit_every_layer(size):
    report = explain(decoder(layers=2), torch.randn(5, 32), config={"oproj_tensor_parallel_size": size})
    assert report.fitting_sizes == (2, 4, 8, 16, 32)
    assert report.sizes == (size,)
    assert not report.fits(size)
    assert [row.path for row in report.misfits(size)] == paths(report)


def test_explains_a_model_that_is_compiled_already():
    model = torch.compile(decoder(layers=2), backend="eager")
    assert paths(explain(model, torch.randn(5, 32))) == [f"layers.{i}.attn.o_proj" for i in range(2)]


def test_refuses_a_model_that_is_sharded_already():
    model, x = decoder(layers=1), torch.randn(5, 32)
    with fake_world(2), torch.no_grad():
        torch.compile(model, backend="oproj_npu", options={"oproj_tensor_parallel_size": 2})(x)
    with pytest.raises(WeightReleasedError, match=r"layers\.0\.attn\.o_proj\.weight is already sharded"):
        explain(model, x)


def test_refuses_what_is_no_module():
    with pytest.raises(ConfigError, match="model is a function, required"):
        explain(lambda x: x, torch.randn(2))


def test_refuses_a_model_that_cannot_be_copied():
    model = decoder(layers=1)
    model.handle = (frame for frame in ())
    with pytest.raises(ConfigError, match="Decoder or its arguments cannot be copied"):
        explain(model, torch.randn(5, 32))


def test_refuses_unknown_options():
    with pytest.raises(ConfigError, match="did you mean 'include'"):
        explain(decoder(layers=1), torch.randn(5, 32), config={"includes": "*"})


def test_lets_the_models_own_errors_through():
    with pytest.raises(RuntimeError, match=r"33"):
        explain(decoder(layers=1), torch.randn(5, 33))


def test_refuses_an_option_that_would_go_to_the_model():
    with pytest.raises(ConfigError, match=r"config=\{'oproj_tensor_parallel_size': 2\}"):
        explain(decoder(), torch.randn(3, 32), oproj_tensor_parallel_size=2)
