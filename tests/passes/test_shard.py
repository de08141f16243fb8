"""The pass alone: what it writes into a graph, and that what it writes is right on every rank."""

import operator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from oproj_pass.errors import ConfigError
from oproj_pass.passes import Exchange, ShardOProj, run_passes, shard_of
from oproj_pass.passes.graph.provenance import module_path, placeholders, value_of
from tests.support.fake import fake_world, run_on_all_ranks
from tests.support.models import decoder, rows

c10d, aten = torch.ops._c10d_functional, torch.ops.aten


@pytest.fixture(params=[2, 4])
def world(request):
    with fake_world(request.param) as name:
        yield Exchange(request.param, name)


def exported(model, x, decompose=False, dynamic_shapes=None):
    program = torch.export.export(model, (x,), dynamic_shapes=dynamic_shapes)
    return program.run_decompositions() if decompose else program


def sharded(program, exchange):
    gm = program.graph_module
    (record,) = run_passes(
        gm, (), [ShardOProj(exchange, parameters=program.graph_signature.inputs_to_parameters)]
    )
    return gm, record


def full_weights(program, model):
    names = program.graph_signature.inputs_to_parameters
    return {placeholder: model.get_parameter(name) for placeholder, name in names.items()}


def largest_error(model, exchange, shape=(3, 32), edit=None, slice_of=shard_of, **options):
    program = exported(model, rows(*shape), **options)
    gm, record = sharded(program, exchange)
    if edit:
        edit(gm)
        gm.recompile()
    inputs = [(rows(*shape),) for _ in range(exchange.size)]
    weights = full_weights(program, model)
    outputs = run_on_all_ranks(gm, record, weights, inputs, exchange.size, slice_of)
    return max((y - model(x)).abs().max().item() for y, (x,) in zip(outputs, inputs, strict=True))


@pytest.mark.parametrize("decompose", [False, True], ids=["exported", "decomposed"])
@pytest.mark.parametrize("projection", ["linear", "addmm", "matmul"])
def test_keeps_every_ranks_result_on_an_aten_graph(world, projection, decompose):
    assert largest_error(decoder(projection=projection), world, decompose=decompose) < 1e-5


def test_keeps_every_ranks_result_for_a_linear_that_decomposes_to_a_broadcast_weight(world):
    assert largest_error(decoder(), world, (2, 3, 32), decompose=True) < 1e-5


@pytest.mark.parametrize("shape", [(1, 32), (2, 3, 32)])
def test_keeps_every_ranks_result_for_any_number_of_leading_dimensions(world, shape):
    assert largest_error(decoder(), world, shape) < 1e-5


def drop_exchange(gm):
    for node in gm.graph.find_nodes(op="call_function", target=c10d.all_to_all_single.default):
        node.replace_all_uses_with(node.args[0])


def next_ranks_slice(weight_slice, full, rank, size):
    return shard_of(weight_slice, full, (rank + 1) % size, size)


@pytest.mark.parametrize("sabotage", [{"edit": drop_exchange}, {"slice_of": next_ranks_slice}])
def test_parity_fails_when_sabotaged(world, sabotage):
    assert largest_error(decoder(), world, **sabotage) > 1e-2


def test_writes_one_exchange_one_partial_product_and_one_reduction_per_site(world):
    program = exported(decoder(layers=3), rows(3, 32))
    before = [node.target for node in program.graph_module.graph.nodes]
    gm, record = sharded(program, world)
    after = [node.target for node in gm.graph.nodes]
    assert len(record.matches) == 3
    for target in (c10d.all_to_all_single.default, c10d.reduce_scatter_tensor.default):
        assert (before.count(target), after.count(target)) == (0, 3)
    assert before.count(aten.linear.default) == after.count(aten.linear.default)


def test_exchanges_flat_buffers(world):
    gm, _ = sharded(exported(decoder(), rows(3, 32)), world)
    for node in gm.graph.find_nodes(op="call_function", target=c10d.all_to_all_single.default):
        assert value_of(node.args[0]).dim() == 1
        assert sum(node.args[1]) == value_of(node.args[0]).numel()


def test_adds_the_bias_after_the_reduction(world):
    gm, record = sharded(exported(decoder(layers=1), rows(3, 32)), world)
    (wait,) = (
        node
        for node in gm.graph.nodes
        if node.target is c10d.wait_tensor.default and "reduce" in node.args[0].name
    )
    (add,) = wait.users
    assert add.target is aten.add.Tensor
    assert add.args[1] is record.matches[0].gemm.bias


def test_narrows_the_weights_placeholder_and_no_other_input(world):
    program = exported(decoder(), rows(3, 32))
    shapes = {node.name: tuple(value_of(node).shape) for node in placeholders(program.graph_module)}
    gm, record = sharded(program, world)
    narrowed = {site.weight.name for site in record.matches}
    for node in placeholders(gm):
        expected = (32, 32 // world.size) if node.name in narrowed else shapes[node.name]
        assert tuple(value_of(node).shape) == expected


def test_gives_new_nodes_the_values_and_the_origin_of_their_place(world):
    gm, record = sharded(exported(decoder(), rows(3, 32)), world)
    written = {node: value_of(node) for node in record.changed}
    assert all(module_path(node).endswith("attn.o_proj") for node in record.changed)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        inputs = [mode.from_tensor(torch.empty(value_of(node).shape)) for node in placeholders(gm)]
        FakeTensorProp(gm, mode).propagate_dont_convert_inputs(*inputs)
    for node, value in written.items():
        if isinstance(value, torch.Tensor):
            assert value.shape == value_of(node).shape
            assert value.dtype == value_of(node).dtype


def test_keeps_row_counts_symbolic(world):
    rows_dim = torch.export.Dim("rows", min=2, max=64)
    program = exported(decoder(), rows(8, 32), dynamic_shapes=({0: rows_dim},))
    gm, _ = sharded(program, world)
    for node in gm.graph.find_nodes(op="call_function", target=c10d.all_to_all_single.default):
        assert isinstance(value_of(node).shape[0], torch.SymInt)
        assert all(split.target is operator.floordiv for split in node.args[1])


def test_keeps_the_collectives_when_a_rank_does_not_use_the_result(world):
    """Dead-code elimination on one rank only would leave its peers waiting."""
    gm, record = sharded(exported(decoder(layers=1), rows(3, 32)), world)
    (output,) = gm.graph.find_nodes(op="output")
    output.args = ((placeholders(gm)[-1],),)
    gm.graph.eliminate_dead_code()
    left = [node.target for node in gm.graph.nodes]
    assert left.count(c10d.all_to_all_single.default) == len(record.matches)
    assert left.count(c10d.reduce_scatter_tensor.default) == len(record.matches)


def test_leaves_a_graph_without_projections_alone(world):
    program = exported(torch.nn.Linear(32, 32), rows(3, 32))
    before = program.graph_module.code
    gm, record = sharded(program, world)
    assert record.is_clean
    assert gm.code == before


def test_shards_a_weight_once_for_all_its_sites(world):
    model = decoder()
    model.layers[1].attn.o_proj.weight = model.layers[0].attn.o_proj.weight
    _, record = sharded(exported(model, rows(3, 32)), world)
    assert len(record.matches) == 2
    (weight,) = {site.weight for site in record.matches}
    assert tuple(value_of(weight).shape) == (32, 32 // world.size)


@pytest.mark.parametrize(("heads", "head_dim", "fitting"), [(1, 30, "2"), (1, 2, "2"), (1, 15, "none but 1")])
def test_refuses_a_k_that_the_group_does_not_divide_and_names_what_does(heads, head_dim, fitting):
    program = exported(decoder(layers=1, heads=heads, head_dim=head_dim), rows(3, 32))
    before = program.graph_module.code
    with fake_world(4) as name, pytest.raises(ConfigError) as refused:
        sharded(program, Exchange(4, name))
    assert f"layers.0.attn.o_proj: K = {heads * head_dim}" in str(refused.value)
    assert str(refused.value).rstrip(".").endswith(fitting)
    assert program.graph_module.code == before


def test_accepts_k_32_over_2_and_4_ranks_and_refuses_6():
    for size in (2, 4):
        with fake_world(size) as name:
            assert largest_error(decoder(kv_heads=1), Exchange(size, name)) < 1e-5
    with fake_world(6) as name, pytest.raises(ConfigError, match="K = 32"):
        sharded(exported(decoder(), rows(3, 32)), Exchange(6, name))


def test_refuses_a_bare_number_of_ranks_and_says_what_to_write():
    with pytest.raises(
        ConfigError, match=r"policy is 4, required: .*ShardOProj\(Exchange\(N, group_name\)\)"
    ):
        ShardOProj(4)
