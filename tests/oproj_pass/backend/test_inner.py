"""The inner backend: found by name or device, and given options that are checked first."""

import pytest
import torch
from torch._dynamo.backends.registry import _BACKENDS, _COMPILER_FNS, lookup_backend, register_backend
from torch._subclasses.fake_tensor import FakeTensorMode

from oproj_pass import ConfigError, OProjConfig
from oproj_pass.backend.inner import inner_backend


def resolve(device="cpu", **fields):
    with FakeTensorMode():
        inputs = {"x": torch.empty(2, device=device)}
    return inner_backend(OProjConfig(**fields), inputs)


@pytest.fixture
def listening():
    """A backend of somebody else's that takes options; what it was given."""
    given = []

    def listens(gm, example_inputs, options=None):
        given.append(options)
        return gm

    register_backend(listens)
    yield given
    del _BACKENDS["listens"], _COMPILER_FNS["listens"]


@pytest.mark.parametrize(("device", "name"), [("cpu", "eager"), ("cuda", "inductor")])
def test_auto_goes_by_the_device(device, name):
    assert resolve(device) is lookup_backend(name)


def test_a_backend_without_options_is_taken_as_it_is_registered():
    assert resolve(inner_backend="aot_eager") is lookup_backend("aot_eager")


def test_inductor_compiles_with_its_options():
    seen = []
    options = {"post_grad_custom_pre_pass": seen.append, "fallback-random": True}
    fields = {"oproj_tensor_parallel_size": 0, "inner_backend": "inductor", "inner_options": options}
    with torch.inference_mode():
        assert torch.compile(lambda x: x + 1, backend="oproj_npu", options=fields)(torch.zeros(1)) == 1
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_autotun": True}, "inductor has no option 'max_autotun': did you mean 'max_autotune'"),
        ({"max_autotune": "yes"}, "inductor: Unexpected type of attr max_autotune"),
    ],
)
def test_refuses_inductor_options_of_a_wrong_name_or_type(options, words):
    with pytest.raises(ConfigError, match=words):
        resolve(inner_backend="inductor", inner_options=options)


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_refuses_options_for_a_backend_that_has_none(name):
    with pytest.raises(ConfigError, match=f"inner_backend = '{name}' takes no options"):
        resolve(inner_backend=name, inner_options={"mode": "fast"})


def test_another_backend_gets_its_options_as_dynamo_gives_them(listening):
    compiler = resolve(inner_backend="listens", inner_options={"depth": 3})
    compiler(torch.fx.symbolic_trace(torch.nn.ReLU()), [torch.zeros(1)])
    assert listening == [{"depth": 3}]


@pytest.mark.parametrize("value", [3, "force_eager", [("force_eager", True)]])
def test_refuses_inner_options_that_are_no_mapping(value):
    with pytest.raises(ConfigError, match="option inner_options"):
        OProjConfig(inner_options=value)
