"""Weights that the graph dequantises, sharded on real ranks in a Dynamo graph, and gathered back."""

import pytest
import torch

import oproj_pass
from oproj_pass.weights.released import ReleasedBuffer
from tests.support import layouts, quantised
from tests.support.layouts import layout
from tests.support.quantised import ATTENTION, Model, model

pytestmark = pytest.mark.distributed
KINDS = [layouts.Groups, layouts.CompressedTensors, layouts.GPTQ, layouts.AWQ, layouts.SquareBlocks]


def compiled(module):
    torch._dynamo.reset()
    options = {"attention_ops": ATTENTION, "oproj_tensor_parallel_size": 2, "expected_sites": 1}
    return torch.compile(module, backend="oproj_npu", options=options, fullgraph=True)


def steps(kind, dynamic):
    """The largest error of steps of several row counts, and what each cut tensor kept."""
    module, reference = Model(layout(kind)), Model(layout(kind))
    step = compiled(module)
    errors = []
    with torch.inference_mode():
        for count in (3, 5):
            x = torch.randn(count, 64)
            if dynamic:
                torch._dynamo.mark_dynamic(x, 0)
            expected = reference(x)
            errors.append(((step(x) - expected).abs().max() / expected.abs().max()).item())
    report = oproj_pass.shard_report(module)
    return max(errors), {w.path: w.full_nbytes / (w.shard_nbytes + w.left_nbytes) for w in report.weights}


def all_steps(dynamic):
    return {kind.__name__: steps(kind, dynamic) for kind in KINDS}


@pytest.fixture(scope="module", params=[False, True], ids=["static", "dynamic"])
def found(request, two_ranks):
    return two_ranks.run(all_steps, request.param, timeout=300)


@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_unsharded_model_and_keeps_half_of_what_is_cut(found, kind):
    for by_kind in found:
        error, shares = by_kind[kind.__name__]
        assert error < 1e-5
        assert shares == {f"o_proj.{name}": 2 for name in kind.kept}


STORED = [
    lambda: Model(layout(layouts.SquareBlocks)), lambda: Model(layout(layouts.GPTQ)),
    lambda: model(quantised.ScaledRow), lambda: model(quantised.W8A8DynamicParameters),
]  # fmt: skip


def gathered():
    results = []
    for build in STORED:
        module, reference = build(), build()
        with torch.inference_mode():
            compiled(module)(torch.randn(3, 64, dtype=torch.bfloat16).to(_dtype(module)))
        full = oproj_pass.full_state_dict(module)
        same = [_same(value, full[name]) for name, value in reference.state_dict().items()]
        twice = {name: _doubled(value) for name, value in reference.state_dict().items()}
        module.load_state_dict(twice)
        again = oproj_pass.full_state_dict(module)
        loaded = [_same(value, again[name]) for name, value in twice.items()]
        kinds = {type(value).__name__ for value in module.state_dict(keep_vars=True).values()}
        results.append((all(same), all(loaded), kinds))
    return results


def _dtype(module):
    return getattr(module.o_proj, "dtype", torch.float32)


def _doubled(value):
    return value if value.dtype == torch.int64 else (value.float() * 2).to(value.dtype)


def _same(a, b):
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a.float(), b.float())


def test_gathers_and_loads_quantised_buffers_and_parameters(two_ranks):
    for results in two_ranks.run(gathered):
        for same, loaded, kinds in results:
            assert same
            assert loaded
            assert kinds & {"ReleasedBuffer", "ReleasedParameter"}


def eager_after_release(kind):
    module, x = model(kind), torch.randn(3, 64, dtype=torch.bfloat16)
    with torch.inference_mode():
        compiled(module)(x)
        try:
            module(x)
        except oproj_pass.OProjError as error:
            return type(error).__name__
    return "nothing"


@pytest.mark.parametrize("kind", [quantised.W8A8Static, quantised.W8A8Dynamic, quantised.IntMM])
def test_refuses_an_eager_step_of_a_released_projection(two_ranks, kind):
    assert two_ranks.run(eager_after_release, kind) == ["EagerStepError"] * 2


def after_release():
    module = Model(layout(layouts.Groups))
    with torch.inference_mode():
        compiled(module)(torch.randn(3, 64))
    errors = {}
    uses = {"eager": lambda: module(torch.randn(3, 64)), "state_dict": module.state_dict}
    for name, use in uses.items():
        try:
            use()
        except oproj_pass.OProjError as error:
            errors[name] = type(error).__name__
    return errors, type(module.o_proj.q) is ReleasedBuffer, repr(module.o_proj.q)


def test_refuses_every_read_of_a_released_buffer(two_ranks):
    for errors, is_released, text in two_ranks.run(after_release):
        assert errors == dict.fromkeys(("eager", "state_dict"), "WeightReleasedError")
        assert is_released
        assert text.startswith("ReleasedBuffer(o_proj (rank ")
