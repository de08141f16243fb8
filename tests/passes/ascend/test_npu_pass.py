"""The custom pass on ATen graphs, as any compiler behind AOTAutograd calls it; no Ascend software."""

import dis
import hashlib
import io
import subprocess
import sys
from dataclasses import fields

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.backends.common import aot_autograd
from torch.nn.utils import parametrize

from oproj_pass.errors import ConfigError, SiteMismatchError
from oproj_pass.passes.ascend import WeightShard, npu_pass
from oproj_pass.passes.ascend.custom_pass import function_of
from oproj_pass.passes.ascend.settings import Settings
from tests.support.fake import fake_world
from tests.support.models import decoder, rows

aten, c10d = torch.ops.aten, torch.ops._c10d_functional


@pytest.fixture
def world():
    with fake_world(4, rank=1):
        yield dist.group.WORLD


def graph_after(custom_pass, model, *inputs, dynamic=False):
    """The forward graph that the pass leaves; its errors come through as Dynamo reports them."""
    graphs = []

    def compiler(gm, example_inputs):
        custom_pass(gm, example_inputs, None)
        graphs.append(gm)
        return gm

    with torch.no_grad():
        torch.compile(model, backend=aot_autograd(fw_compiler=compiler), dynamic=dynamic)(*inputs)
    (gm,) = graphs
    return gm


def error_of(custom_pass, model, *inputs):
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as caught:
        graph_after(custom_pass, model, *inputs)
    return caught.value.inner_exception


def presharded(model, group):
    for layer in model.layers:
        projection = layer.attn.o_proj
        parametrize.register_parametrization(projection, "weight", WeightShard(1, group), unsafe=True)
    return model


def nodes(gm, target):
    return gm.graph.find_nodes(op="call_function", target=target)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_writes_every_copy_out(world, dynamic):
    """torchair takes a reshape for a view: one that must copy would lose the order of the exchange."""
    gm = graph_after(npu_pass(world), decoder(layers=1), rows(3, 32), dynamic=dynamic)
    assert nodes(gm, aten.reshape.default) == []
    (exchange,) = nodes(gm, c10d.all_to_all_single.default)
    (flat,) = exchange.args[0].all_input_nodes[:1]
    assert flat.target is aten.clone.default
    assert flat.args[0].target is aten.permute.default


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_cuts_this_ranks_slice_inside_the_graph_and_keeps_the_inputs(world, dynamic):
    gm = graph_after(npu_pass(world), decoder(), rows(3, 32), dynamic=dynamic)
    cuts = nodes(gm, aten.slice.Tensor)
    assert [cut.args[1:] for cut in cuts] == [(1, 8, 16)] * 2
    for cut in cuts:
        assert cut.args[0].op == "placeholder"
        assert cut.args[0].meta["val"].shape == (32, 32)
        assert list(cut.args[0].users) == [cut]
        assert cut.meta["val"].shape == (32, 8)


def test_exchanges_once_and_reduces_once_a_site(world):
    gm = graph_after(npu_pass(world, expected_sites=2), decoder(), rows(3, 32))
    exchanges = nodes(gm, c10d.all_to_all_single.default)
    assert [node.args[0].meta["val"].shape for node in exchanges] == [(96,)] * 2
    assert [node.meta["val"].shape for node in nodes(gm, c10d.reduce_scatter_tensor.default)] == [(3, 32)] * 2


def test_adds_no_mutation(world):
    gm = graph_after(npu_pass(world), decoder(), rows(3, 32))
    operators = [node.target for node in gm.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert c10d.all_to_all_single.default in operators
    assert [str(target) for target in operators if target._schema.is_mutable] == []


def test_every_node_it_makes_has_a_value_and_its_layer(world):
    gm = graph_after(npu_pass(world), decoder(layers=1), rows(3, 32))
    assert [node for node in gm.graph.nodes if node.op == "call_function" and "val" not in node.meta] == []
    (exchange,) = nodes(gm, c10d.all_to_all_single.default)
    assert next(reversed(exchange.meta["nn_module_stack"].values()))[0].endswith("attn.o_proj")


def test_a_presharded_weight_is_used_as_it_is(world):
    model = presharded(decoder(bias=True), world)
    gm = graph_after(npu_pass(world, expected_sites=2), model, rows(3, 32))
    assert nodes(gm, aten.slice.Tensor) == nodes(gm, torch.ops.oproj_pass.full_weight.default) == []
    reduced = nodes(gm, c10d.reduce_scatter_tensor.default)
    assert [node.args[0].meta["val"].shape for node in reduced] == [(12, 32)] * 2


def test_a_presharded_weight_takes_a_ranks_part_of_the_memory(world):
    model = decoder(layers=1)
    projection = model.layers[0].attn.o_proj
    full = projection.weight.detach().clone()
    presharded(model, world)
    slice_ = projection.parametrizations.weight.original
    assert torch.equal(slice_, full[:, 8:16])
    assert slice_.untyped_storage().nbytes() * 4 == full.untyped_storage().nbytes()


def test_leaves_excluded_projections_alone(world):
    gm = graph_after(npu_pass(world, exclude="layers.0.*", expected_sites=1), decoder(), rows(3, 32))
    assert len(nodes(gm, c10d.all_to_all_single.default)) == 1


def test_leaves_a_graph_without_a_projection_alone(world):
    gm = graph_after(npu_pass(world), decoder().layers[0].up, rows(3, 32))
    assert nodes(gm, c10d.all_to_all_single.default) == nodes(gm, aten.slice.Tensor) == []


def test_leaves_the_graph_alone_for_a_single_rank():
    with fake_world(1):
        gm = graph_after(npu_pass(expected_sites=2), decoder(), rows(3, 32))
    assert nodes(gm, c10d.all_to_all_single.default) == nodes(gm, aten.slice.Tensor) == []


def test_partial_sums_travel_in_the_type_that_is_asked_for(world):
    gm = graph_after(
        npu_pass(world, reduce_dtype=torch.float32),
        decoder(torch.bfloat16, layers=1),
        rows(3, 32, dtype=torch.bfloat16),
    )
    (reduced,) = nodes(gm, c10d.reduce_scatter_tensor.default)
    assert reduced.meta["val"].dtype == torch.float32


def test_names_what_it_found_when_the_count_is_another(world):
    error = error_of(npu_pass(world, expected_sites=3), decoder(), rows(3, 32))
    assert isinstance(error, SiteMismatchError)
    assert "expected_sites = 3, found 2. Found: layers.0.attn.o_proj; layers.1.attn.o_proj." in str(error)


def test_names_the_layer_whose_features_do_not_divide(world):
    error = error_of(npu_pass(world), decoder(heads=3, head_dim=6), rows(3, 32))
    assert isinstance(error, ConfigError)
    assert "layers.0.attn.o_proj: K = 18" in str(error)


def test_refuses_a_presharded_weight_that_it_may_not_take(world):
    model = presharded(decoder(), world)
    error = error_of(npu_pass(world, exclude="layers.1.*"), model, rows(3, 32))
    assert isinstance(error, SiteMismatchError)
    assert "layers.1.attn.o_proj: holds only this rank's slice" in str(error)


def test_refuses_a_weight_sharded_over_other_ranks(world):
    model = presharded(decoder(), dist.new_group([0, 1]))
    error = error_of(npu_pass(world), model, rows(3, 32))
    assert isinstance(error, ConfigError)
    assert "layers.0.attn.o_proj: its weight is sharded over 2 ranks" in str(error)


def test_refuses_to_cut_a_weight_that_the_group_does_not_divide(world):
    with pytest.raises(ConfigError, match="18 input features cannot be split over 4 ranks"):
        WeightShard(1, world).right_inverse(torch.empty(32, 18))


def test_needs_a_process_group():
    with pytest.raises(ConfigError, match="distributed is not initialised"):
        npu_pass()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"attention_ops": "npu_ring_mla"}, "qualified operator names"),
        ({"include": [3]}, "include takes strings, got 3"),
        ({"reduce_dtype": torch.int8}, "torch.int8"),
        ({"reduce_dtype": "float32"}, "'float32'"),
        ({"group": 4}, "group must be a process group that holds rank 1, got 4"),
    ],
)
def test_refuses_a_wrong_setting_before_any_graph(world, options, told):
    with pytest.raises(ConfigError, match=told):
        npu_pass(**options)


def digest(function):
    """How npugraph_ex's compile cache tells custom passes apart."""
    text = io.StringIO()
    dis.dis(function, file=text)
    return hashlib.md5(text.getvalue().encode()).hexdigest()


SETTINGS = st.builds(
    Settings,
    version=st.sampled_from(["0.1.0", "0.2.0"]),
    group_name=st.text(max_size=3),
    ranks=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    rank=st.integers(0, 9),
    include=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    exclude=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    attention_ops=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    expected_sites=st.none() | st.integers(0, 9),
    reduce_dtype=st.none() | st.sampled_from(["float16", "float32"]),
)


@given(SETTINGS, SETTINGS)
def test_passes_have_one_digest_exactly_if_they_have_one_configuration(first, second):
    assert digest(function_of(first)) == digest(function_of(Settings(**vars(first))))
    assert (digest(function_of(first)) == digest(function_of(second))) == (first == second)


BASE = Settings("0.1.0", "g", (0, 1), 0, (), (), (), None, None)
OTHER = Settings("0.2.0", "h", (0, 1, 2, 3), 1, ("a",), ("a",), ("a::b",), 0, "float32", "column", "exchange")


@pytest.mark.parametrize("field", [field.name for field in fields(Settings)])
def test_every_setting_is_part_of_the_digest(field):
    changed = Settings(**{**vars(BASE), field: getattr(OTHER, field)})
    assert digest(function_of(changed)) != digest(function_of(BASE))


IN_ANOTHER_PROCESS = """
from tests.passes.ascend.test_npu_pass import BASE, OTHER, digest, function_of
print(digest(function_of(BASE)), digest(function_of(OTHER)))
"""


def test_the_digest_is_the_same_in_another_process(pytestconfig):
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=pytestconfig.rootpath)
    assert told.stdout.split() == [digest(function_of(BASE)), digest(function_of(OTHER))]


def test_the_pass_holds_no_nested_code():
    """The text of a nested code object holds its address, which no other process repeats."""
    constants = function_of(OTHER).__code__.co_consts
    assert [constant for constant in constants if hasattr(constant, "co_code")] == []


def test_carries_its_configuration_in_its_code(world):
    code = npu_pass(world, include="layers.*", reduce_dtype=torch.float32).__code__
    assert {(0, 1, 2, 3), 1, ("layers.*",), "float32", world.group_name} <= set(code.co_consts)


class StaticInputs:
    """Marks inputs by position, as both compilers mark parameters and buffers, before the pass runs."""

    def __init__(self, custom_pass, is_stored):
        self.custom_pass, self.is_stored = custom_pass, is_stored

    def __call__(self, gm, example_inputs, config):
        for value in example_inputs:
            if self.is_stored(value):
                value._torchair_is_parameter = True
        self.custom_pass(gm, example_inputs, config)


def test_takes_weights_that_the_compiler_marks(world):
    custom_pass = StaticInputs(npu_pass(world, expected_sites=1), lambda value: value.shape != (3, 32))
    assert graph_after(custom_pass, decoder(layers=1), rows(3, 32))


def test_leaves_a_matrix_that_is_brought_with_each_step_alone(world):
    custom_pass = StaticInputs(npu_pass(world, expected_sites=1), lambda value: value.shape != (32, 32))
    error = error_of(custom_pass, decoder(layers=1), rows(3, 32))
    assert "neither a parameter nor a buffer" in str(error)
