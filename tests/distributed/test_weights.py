"""Full weights are released, never served stale, and never lost."""

import copy
import gc
import io
import weakref
from unittest.mock import patch

import pytest
import torch
from torch import nn

import oproj_pass
from oproj_pass.weights import released
from oproj_pass.weights.released import ReleasedParameter
from tests.support.models import Attention, decoder, rows

pytestmark = pytest.mark.distributed


def compiled(model, **options):
    return torch.compile(
        model, backend="oproj_npu", options=options, fullgraph=options.pop("fullgraph", True)
    )


def sharded_decoder(**model_options):
    """A sharded decoder that has run once, its compiled form, its unsharded twin, and an input."""
    model, reference, x = decoder(layers=1, **model_options), decoder(layers=1, **model_options), rows(3, 32)
    step = compiled(model)
    step(x)
    return model, step, reference, x


def difference(a, b):
    return (a - b).abs().max().item()


def raised(function):
    try:
        function()
    except oproj_pass.OProjError as error:
        return type(error).__name__, str(error)
    return "nothing", ""


@torch.inference_mode()
def memory():
    model = decoder(layers=3)
    full = sum(layer.attn.o_proj.weight.untyped_storage().nbytes() for layer in model.layers)
    compiled(model)(rows(3, 32))
    report = oproj_pass.shard_report(model)
    left = sum(layer.attn.o_proj.weight.untyped_storage().nbytes() for layer in model.layers)
    return full, left, report.to_dict()


@pytest.mark.parametrize("size", [2, 4])
def test_frees_exactly_the_share_of_the_other_ranks(two_ranks, four_ranks, size):
    for full, left, report in (two_ranks if size == 2 else four_ranks).run(memory):
        assert left == 0
        assert report["full_nbytes"] == full
        assert report["freed_nbytes"] * size == full * (size - 1)
        assert [w["path"] for w in report["weights"]] == [f"layers.{i}.attn.o_proj.weight" for i in range(3)]


@torch.inference_mode()
def highest_memory():
    """Bytes of full weights and shards after each cut of the first call, the moments of the highest sums."""
    model, sums, shards, dense = decoder(layers=4), [], [], released.dense
    weights = [layer.attn.o_proj.weight for layer in model.layers]

    def measured(slice_):
        shards.append(dense(slice_))
        sums.append(sum(w.untyped_storage().nbytes() for w in [*weights, *shards]))
        return shards[-1]

    full = sum(w.untyped_storage().nbytes() for w in weights)
    with patch.object(released, "dense", measured):
        compiled(model)(rows(3, 32))
    return sums, full, shards[0].untyped_storage().nbytes()


def test_releases_layer_by_layer(two_ranks):
    for sums, full, one_shard in two_ranks.run(highest_memory):
        assert len(sums) == 4
        assert max(sums) <= full + one_shard


@torch.inference_mode()
def after_release():
    model, _, _, x = sharded_decoder()
    weight = model.layers[0].attn.o_proj.weight
    uses = {
        "eager call": lambda: model(x),
        "state_dict": model.state_dict,
        "save": lambda: torch.save(model, io.BytesIO()),
        "save parameters": lambda: torch.save(dict(model.named_parameters()), io.BytesIO()),
        "deepcopy": lambda: copy.deepcopy(model),
        "arithmetic": lambda: weight + 1,
        "sum": weight.sum,
        "clone of data": lambda: weight.data.clone(),
        "numpy": weight.numpy,
    }
    return {name: raised(use) for name, use in uses.items()}, repr(weight), weight.shape


def test_refuses_every_read_of_a_released_weight(two_ranks):
    for rank, (errors, text, shape) in enumerate(two_ranks.run(after_release)):
        assert errors.pop("eager call")[0] == "EagerStepError"
        for use, (kind, message) in errors.items():
            assert kind == "WeightReleasedError", use
            assert f"layers.0.attn.o_proj (rank {rank}" in message
            assert "full_state_dict" in message
        assert "slice" in text
        assert shape == (32, 32)


@torch.inference_mode()
def gathered_equals_original():
    model, step, reference, x = sharded_decoder(projection="addmm")
    gathered = oproj_pass.full_state_dict(step)
    fresh = decoder(layers=1, projection="addmm")
    for parameter in fresh.parameters():
        parameter.zero_()
    fresh.load_state_dict(gathered)
    same = all(torch.equal(value, gathered[name]) for name, value in reference.state_dict().items())
    still_sharded = type(model.layers[0].attn.o_proj.weight) is ReleasedParameter
    return same, still_sharded, difference(fresh(x), reference(x))


def test_gathers_the_full_state_dict_back(two_ranks):
    assert two_ranks.run(gathered_equals_original) == [(True, True, 0.0)] * 2


def load_others(model, new):
    values = {name: value for name, value in new.state_dict().items() if "o_proj.weight" not in name}
    model.load_state_dict(values, strict=False)


def set_data(model, new):
    for parameter, other in zip(model.parameters(), new.parameters(), strict=True):
        parameter.data = other.detach().clone()


def copy_into_data(model, new):
    for parameter, other in zip(model.parameters(), new.parameters(), strict=True):
        parameter.data.copy_(other)


def views_of_one_buffer(model, new):
    """As a bucketed transfer of weights leaves them."""
    weights = [layer.attn.o_proj.weight for layer in new.layers]
    views = torch.cat([weight.flatten() for weight in weights]).split([weight.numel() for weight in weights])
    for layer, weight, view in zip(model.layers, weights, views, strict=True):
        layer.attn.o_proj.weight = nn.Parameter(view.view(weight.shape), requires_grad=False)
    load_others(model, new)


def bucket_assigned(model, new):
    """``load_state_dict(assign=True)`` with views of one buffer."""
    state = new.state_dict()
    views = torch.cat([value.flatten() for value in state.values()]).split(
        [v.numel() for v in state.values()]
    )
    model.load_state_dict(
        {name: view.view(state[name].shape) for name, view in zip(state, views, strict=True)}, assign=True
    )


def new_parameters(model, new):
    for layer, other in zip(model.layers, new.layers, strict=True):
        layer.attn.o_proj.weight = nn.Parameter(other.attn.o_proj.weight.clone(), requires_grad=False)
    load_others(model, new)


SWAPS = {
    "load_state_dict": lambda model, new: model.load_state_dict(new.state_dict()),
    "load_state_dict(assign=True)": lambda model, new: model.load_state_dict(
        {name: value.clone() for name, value in new.state_dict().items()}, assign=True
    ),
    ".data =": set_data,
    ".data.copy_": copy_into_data,
    "a new Parameter": new_parameters,
    "views of one buffer": views_of_one_buffer,
    "a bucket": bucket_assigned,
}


KEPT = {"views of one buffer", "a bucket"}  # a part of a buffer cannot be given back


def swapped(swap):
    """The errors against the new and the old weights, after a swap behind the compiler's back."""
    model, old, new, x = decoder(), decoder(), decoder(), rows(3, 32)
    step = compiled(model)
    with torch.inference_mode():
        step(x)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.mul_(1.5)
        SWAPS[swap](model, new)
    with torch.inference_mode():
        y = step(x)
        freed = oproj_pass.shard_report(model).freed_nbytes
        return difference(y, new(x)), difference(y, old(x)), freed


@pytest.mark.parametrize("swap", SWAPS)
def test_never_serves_a_stale_shard(two_ranks, swap):
    for to_new, to_old, freed in two_ranks.run(swapped, swap):
        assert to_new < 1e-5
        assert to_old > 1e-2  # the negative control: the two models differ
        assert freed == (0 if swap in KEPT else 2 * 32 * 32 * 4 // 2)


@torch.inference_mode()
def refused_swaps():
    model, *_ = sharded_decoder()
    weight = model.layers[0].attn.o_proj.weight
    shape = raised(lambda: weight.copy_(torch.ones(32, 1).expand(32, 16)))
    dtype = raised(lambda: setattr(weight, "data", torch.ones(32, 32, dtype=torch.bfloat16)))
    return shape, dtype


def test_refuses_a_swap_that_changes_shape_or_type(two_ranks):
    for shape, dtype in two_ranks.run(refused_swaps):
        assert shape[0] == dtype[0] == "ConfigError"
        assert "(32, 16)" in shape[1]
        assert "bfloat16" in dtype[1]
        assert "layers.0.attn.o_proj" in shape[1]


@torch.inference_mode()
def layers_behind_graph_breaks(layers):
    """Dynamo compiles one layer's frame, and runs it again with every other layer's weights."""
    options = {"layers": layers, "graph_breaks": True}
    model, reference, x = decoder(**options), decoder(**options), rows(3, 32)
    torch._dynamo.utils.counters.clear()
    step = compiled(model, fullgraph=False, oproj_tensor_parallel_size=2)
    errors = [difference(step(x), reference(x)) for _ in range(2)]
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    errors.append(difference(step(rows_like := x[:2].clone()), reference(rows_like)))
    return max(errors), graphs, len(oproj_pass.shard_report(model).weights)


def test_serves_each_layer_its_own_shard_when_layers_share_a_graph(two_ranks):
    """More layers than Dynamo's recompile limit, one graph, and a recompilation after the release."""
    for error, graphs, sharded in two_ranks.run(layers_behind_graph_breaks, 12):
        assert error < 1e-5
        assert graphs == 1
        assert sharded == 12


@torch.inference_mode()
def tied_layers(how):
    model, reference, x = decoder(), decoder(), rows(3, 32)
    for m in (model, reference):
        first, second = (layer.attn.o_proj for layer in m.layers)
        second.weight = first.weight if how == "one parameter" else nn.Parameter(first.weight.detach(), False)
    error = difference(compiled(model)(x), reference(x))
    first, second = (layer.attn.o_proj.weight for layer in model.layers)
    report = oproj_pass.shard_report(model)
    return error, first is second, first.shard is second.shard, len(report.weights)


@pytest.mark.parametrize("how", ["one parameter", "two parameters over one storage"])
def test_keeps_one_shard_for_a_weight_at_two_sites(two_ranks, how):
    for error, identical, one_shard, listed in two_ranks.run(tied_layers, how):
        assert error < 1e-5
        assert identical == (how == "one parameter")
        assert one_shard
        assert listed == 1


class TiedElsewhere(nn.Module):
    """The projection's storage is read by another layer as well, in the same or in another graph."""

    def __init__(self, graph_break):
        super().__init__()
        self.attn = Attention()
        self.other = nn.Linear(32, 32, bias=False)
        self.other.weight = nn.Parameter(self.attn.o_proj.weight.detach())
        self.graph_break = graph_break

    def forward(self, x):
        x = x + self.other(x)
        if self.graph_break:
            torch._dynamo.graph_break()
        return x + self.attn(x)


@torch.inference_mode()
def tied_elsewhere(graph_break):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = TiedElsewhere(graph_break).eval()
    x = rows(3, 32)
    expected = model(x)
    step = torch.compile(model, backend="oproj_npu")
    return difference(step(x), expected), type(model.attn.o_proj.weight).__name__


@pytest.mark.parametrize("graph_break", [False, True], ids=["one graph", "two graphs"])
def test_leaves_a_weight_alone_that_something_else_reads(two_ranks, graph_break):
    for error, kind in two_ranks.run(tied_elsewhere, graph_break):
        assert error == 0
        assert kind == "Parameter"


@torch.inference_mode()
def full_storage_after_compilation():
    model = decoder(layers=1)
    storage = weakref.ref(model.layers[0].attn.o_proj.weight.untyped_storage())
    compiled(model)(rows(3, 32))
    gc.collect()
    return storage() is None or storage().nbytes() == 0


def test_leaves_no_second_holder_of_the_full_weight(two_ranks):
    assert two_ranks.run(full_storage_after_compilation) == [True, True]


@torch.inference_mode()
def tensors_kept_by_steps(steps, leak):
    """How many tensors that are new since the steps before outlive so many steps."""
    _, step, _, x = sharded_decoder()
    kept = []
    for _ in range(20):
        step(x)
    gc.collect()
    before = {id(tensor): weakref.ref(tensor) for tensor in live_tensors()}
    for _ in range(steps):
        result = step(x)
        kept += [result] if leak else []
    del result
    gc.collect()
    return sum(id(tensor) not in before or before[id(tensor)]() is not tensor for tensor in live_tensors())


def live_tensors():
    # by type, as asking every object for its class wakes up torch's deprecated ones
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]


def test_keeps_no_tensor_of_a_step(two_ranks):
    for kept in two_ranks.run(tensors_kept_by_steps, 200, False):
        assert kept < 20


def test_counts_a_tensor_that_each_step_keeps(two_ranks):
    for kept in two_ranks.run(tensors_kept_by_steps, 200, True):
        assert kept >= 200


@torch.inference_mode()
def aliased():
    """A model whose weights something else still reads, before and after their values change."""
    model, reference, x = decoder(layers=1), decoder(layers=1), rows(3, 32)
    aliases = {name: value for name, value in model.state_dict().items() if "o_proj.weight" in name}
    step = compiled(model)
    errors = [difference(step(x), reference(x))]
    for name, alias in aliases.items():
        reference.get_parameter(name).copy_(alias.mul_(2) + 0)
    errors.append(difference(step(x), reference(x)))
    return max(errors), difference(step(x), decoder(layers=1)(x)), len(oproj_pass.shard_report(model).weights)


def test_keeps_weights_that_a_state_dict_still_holds(two_ranks):
    for error, to_old, released_weights in two_ranks.run(aliased):
        assert error < 1e-5
        assert to_old > 1e-2  # the negative control: the values did change
        assert released_weights == 0


@torch.inference_mode()
def memory_mapped(path):
    model, reference, x = decoder(layers=1), decoder(layers=1), rows(3, 32)
    torch.save(reference.state_dict(), f"{path}-{torch.distributed.get_rank()}")
    mapped = torch.load(f"{path}-{torch.distributed.get_rank()}", mmap=True)
    model.load_state_dict(mapped, assign=True)
    del mapped  # while it lives, its tensors hold the weights' storages too
    step = compiled(model)
    return difference(step(x), reference(x)), oproj_pass.shard_report(model).to_dict()


def test_releases_memory_mapped_weights(two_ranks, tmp_path):
    for error, report in two_ranks.run(memory_mapped, str(tmp_path / "weights")):
        assert error < 1e-5
        assert report["freed_nbytes"] * 2 == report["full_nbytes"]


@torch.inference_mode()
def kept_weights():
    model, reference, x = decoder(layers=1), decoder(layers=1), rows(3, 32)
    step = compiled(model, release_weights=False)
    before = difference(step(x), reference(x))
    for m in (model, reference):
        m.layers[0].attn.o_proj.weight.mul_(2)
    return before, difference(step(x), reference(x)), difference(model(x), reference(x))


def test_keeps_full_weights_on_request_and_follows_their_changes(two_ranks):
    for before, after, eager in two_ranks.run(kept_weights):
        assert max(before, after) < 1e-5
        assert eager == 0
