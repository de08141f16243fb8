"""Explaining a model leaves it, Dynamo and the process as they were."""

import copy
import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._C._dynamo.eval_frame import _get_total_cache_entry_count
from torch._dynamo import convert_frame, eval_frame, funcname_cache, pgo, utils

from oproj_pass.errors import ConfigError
from oproj_pass.explanation import explain
from tests.support.fake import fake_world
from tests.support.models import Decoder, decoder


class Stateful(nn.Module):
    """Changes a buffer, an attribute, its argument and the random state when it is called."""

    def __init__(self, graph_breaks):
        super().__init__()
        self.decoder = Decoder(layers=2, graph_breaks=graph_breaks)
        self.register_buffer("seen", torch.zeros(()))
        self.steps = 0

    def forward(self, x, cache):
        self.steps += 1
        self.seen += 1
        cache.append(x)
        x.add_(1)
        return nn.functional.dropout(self.decoder(x), 0.5, training=True)


def state_of(model):
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [
        (name, id(t), t._version, t.data_ptr(), t.untyped_storage().nbytes(), t.requires_grad, t.clone())
        for name, t in tensors
    ]


def same(before, after):
    return all(a[:-1] == b[:-1] and torch.equal(a[-1], b[-1]) for a, b in zip(before, after, strict=True))


def compiled_entries():
    codes = [code for ref in convert_frame.input_codes.seen if (code := ref()) is not None]
    return {code: count for code in codes if (count := _get_total_cache_entry_count(code))}


@pytest.mark.parametrize("graph_breaks", [False, True])
def test_keeps_the_model_its_arguments_and_the_random_state(graph_breaks):
    model, x, cache = Stateful(graph_breaks), torch.randn(5, 32), []
    before, values, random = state_of(model), x.clone(), torch.get_rng_state()
    assert len(explain(model, x, cache).projections) == 2
    assert same(before, state_of(model))
    assert model.steps == 0
    assert cache == []
    assert torch.equal(x, values)
    assert torch.equal(torch.get_rng_state(), random)
    model(x, cache)
    assert not same(before, state_of(model))  # the comparison does see a change


@pytest.mark.parametrize("graph_breaks", [False, True])
def test_keeps_what_dynamo_counts_and_remembers(graph_breaks):
    model = decoder(layers=2, graph_breaks=graph_breaks)
    torch.compile(decoder(layers=1), backend="eager")(torch.randn(2, 32))

    def facts():
        return (
            copy.deepcopy(utils.counters),
            list(utils.graph_break_reasons),
            convert_frame.FRAME_COUNTER,
            copy.copy(convert_frame.FRAME_COMPILE_COUNTER),
            copy.deepcopy(pgo._CODE_STATE),
            dict(eval_frame.cached_backends),
        )

    before = facts()
    explain(model, torch.randn(5, 32))
    assert facts() == before
    torch.compile(model, backend="eager")(torch.randn(5, 32))
    assert facts() != before


def live_decoders():
    return {id(thing) for thing in gc.get_objects() if type(thing) is Decoder}


@pytest.mark.parametrize("graph_breaks", [False, True])
def test_leaves_no_compiled_code_and_no_copy_behind(graph_breaks):
    model = decoder(layers=2, graph_breaks=graph_breaks)
    before = live_decoders()
    explain(model, torch.randn(5, 32))
    gc.collect()
    assert compiled_entries() == {}
    assert live_decoders() <= before


@pytest.mark.parametrize("graph_breaks", [False, True])
@settings(max_examples=5, deadline=None)
@given(tokens=st.integers(2, 9))
def test_neither_uses_nor_changes_the_users_compiled_code(graph_breaks, tokens):
    torch._dynamo.reset()
    compilations = []

    def backend(gm, example_inputs):
        compilations.append(gm)
        return gm.forward

    model = decoder(layers=2, graph_breaks=graph_breaks)
    compiled = torch.compile(model, backend=backend, dynamic=False)
    with torch.no_grad():
        compiled(torch.randn(4, 32))
        before = len(compilations)
        report = explain(model, torch.randn(tokens, 32))
        compiled(torch.randn(4, 32))
    assert len(report.projections) == 2
    assert len(compilations) == before


def test_reads_no_file_to_name_the_functions_of_a_log():
    funcname_cache.clearcache()
    explain(decoder(layers=1), torch.randn(5, 32))
    assert funcname_cache.cache == {}
    torch.compile(decoder(layers=1), backend="eager")(torch.randn(5, 32))
    assert funcname_cache.cache  # as Dynamo does elsewhere, and again afterwards


def test_sees_the_whole_model_where_the_users_code_has_hit_the_recompile_limit():
    model = decoder(layers=2)
    compiled = torch.compile(model, backend="eager", dynamic=False)
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=2):
        for tokens in range(2, 7):
            compiled(torch.randn(tokens, 32))
        assert len(explain(model, torch.randn(9, 32)).projections) == 2


def test_works_while_the_users_stance_is_eager():
    with torch.compiler.set_stance("force_eager"):
        assert len(explain(decoder(layers=2), torch.randn(5, 32)).projections) == 2
        assert eval_frame._stance.stance == "force_eager"
    assert eval_frame._stance.stance == "default"


def test_needs_no_process_group_and_keeps_the_one_there_is():
    explain(decoder(layers=1), torch.randn(5, 32))
    assert not dist.is_initialized()
    with fake_world(4) as name:
        explain(decoder(layers=1), torch.randn(5, 32), config={"oproj_tensor_parallel_size": 2})
        assert dist.group.WORLD.group_name == name
        assert len(dist.distributed_c10d._world.pg_map) == 1


def test_cleans_up_after_a_model_that_raises():
    model = decoder(layers=1)
    reference = weakref.ref(model)
    before = copy.deepcopy(utils.counters)
    with pytest.raises(RuntimeError):
        explain(model, torch.randn(5, 33))
    assert utils.counters == before
    assert torch.is_grad_enabled()
    del model
    gc.collect()
    assert reference() is None


def test_says_that_dynamo_is_off(monkeypatch):
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    with pytest.raises(ConfigError, match="unset TORCHDYNAMO_DISABLE"):
        explain(decoder(layers=1), torch.randn(5, 32))
