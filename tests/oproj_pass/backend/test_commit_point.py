"""Until a compilation has wholly succeeded, the model is as it was."""

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from tests.support.fake import fake_world
from tests.support.models import Attention, decoder, rows


class Norm(nn.Module):
    """A norm with a Python float, for which Dynamo may start its trace again after the backend has run."""

    eps = 1e-6

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Normed(nn.Module):
    def __init__(self, fixed_rows=False):
        super().__init__()
        self.norm, self.attn, self.fixed_rows = Norm(), Attention(), fixed_rows

    def forward(self, x):
        if self.fixed_rows:
            torch._check(x.shape[0] == 3)
        return x + self.attn(self.norm(x))


def compiled(model, dynamic=None, size=2, **options):
    options["oproj_tensor_parallel_size"] = size
    return torch.compile(model, backend="oproj_npu", options=options, fullgraph=True, dynamic=dynamic)


def is_intact(model):
    return all(type(p) is nn.Parameter and p.untyped_storage().nbytes() for p in model.parameters())


def is_released(attention):
    return attention.o_proj.weight.untyped_storage().nbytes() == 0


class FailsOnce:
    """An inner backend that fails the first time, as on a full disk."""

    __name__ = "fails_once"

    def __init__(self):
        self.calls = 0

    def __call__(self, gm, example_inputs):
        self.calls += 1
        if self.calls == 1:
            raise OSError("No space left on device")
        return gm


@pytest.fixture(autouse=True)
def inference():
    with fake_world(2), torch.inference_mode():
        yield


def test_survives_a_trace_that_starts_again():
    model = Normed().requires_grad_(False)
    step = compiled(model, dynamic=True, inner_backend="aot_eager")
    assert step(rows(3, 32)).shape == (3, 32)
    assert is_released(model.attn)


@pytest.mark.parametrize("size", [1, 2])
def test_leaves_the_model_alone_when_the_inner_backend_fails(size, monkeypatch):
    model, inner = decoder(), FailsOnce()
    monkeypatch.setattr("oproj_pass.backend.inner.lookup_backend", lambda name: inner)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="No space left"):
        compiled(model, size=size)(rows(3, 32))
    assert is_intact(model)
    torch._dynamo.reset()
    compiled(model)(rows(3, 32))  # nor does the failed graph count as a reader of the weights
    assert is_released(model.layers[0].attn)


def test_leaves_the_model_alone_when_dynamo_refuses_after_the_backend():
    model, x = Normed(fixed_rows=True).requires_grad_(False), rows(3, 32)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(ConstraintViolationError, match="You marked"):
        compiled(model)(x)
    assert is_intact(model)


def test_gives_the_inner_backend_slices_of_the_weights_values(monkeypatch):
    model, seen = decoder(layers=1), []

    def looks(gm, example_inputs):
        seen.extend(value for value in example_inputs if value.shape == (32, 16))
        assert is_intact(model)
        return lookup_backend("eager")(gm, example_inputs)

    monkeypatch.setattr("oproj_pass.backend.inner.lookup_backend", lambda name: looks)
    expected = model.layers[0].attn.o_proj.weight[:, :16].clone()
    compiled(model)(rows(3, 32))
    (slice_,) = seen
    assert torch.equal(slice_, expected)
    assert slice_.is_contiguous()
