"""Low-rank adapters on a sharded projection, nested as peft does: the base is cut, adapters stay whole."""

import pytest
import torch
from torch import nn

import oproj_pass
from oproj_pass.weights.released import ReleasedParameter
from tests.support.models import decoder, rows

pytestmark = pytest.mark.distributed

HIDDEN, RANK = 32, 4
ACTIVE = {"none": (), "one": ("a",), "another": ("b",), "both": ("a", "b")}


class LoraLinear(nn.Module):
    """``y = W x + sum of scaling * B A x`` over the active adapters."""

    def __init__(self, base_layer, active, scaling=2.0):
        super().__init__()
        self.base_layer, self.active, self.scaling = base_layer, active, scaling
        self.lora_A = nn.ModuleDict({name: nn.Linear(HIDDEN, RANK, bias=False) for name in "ab"})
        self.lora_B = nn.ModuleDict({name: nn.Linear(RANK, HIDDEN, bias=False) for name in "ab"})

    def forward(self, x):
        result = self.base_layer(x)
        for name in self.active:
            result = result + self.lora_B[name](self.lora_A[name](x)) * self.scaling
        return result


def adapted(active):
    """A decoder with two adapters on each output projection, the same on every rank."""
    model = decoder(hidden=HIDDEN)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for layer in model.layers:
            layer.attn.o_proj = LoraLinear(layer.attn.o_proj, active)
    return model.eval().requires_grad_(False)


@torch.inference_mode()
def with_adapters():
    """By active adapters: the output, what it must be, and the classes of base and adapter weights."""
    found = {}
    for name, active in ACTIVE.items():
        model, reference, x = adapted(active), adapted(active), rows(3, HIDDEN)
        step = torch.compile(model, backend="oproj_npu", fullgraph=True)
        y, expected = step(x), reference(x)
        with torch.no_grad():
            for module in (model, reference):
                for layer in module.layers:
                    layer.attn.o_proj.lora_B["a"].weight.mul_(-3.0)
        of_layer = model.layers[0].attn.o_proj
        classes = {type(part.weight) for part in (of_layer.lora_A["a"], of_layer.lora_B["b"])}
        found[name] = {
            "loaded": (y, expected),
            "adapter changed": (step(x), reference(x)),
            "without adapters": decoder(hidden=HIDDEN)(x),
            "classes": (type(of_layer.base_layer.weight), classes),
            "freed": oproj_pass.shard_report(model).freed_nbytes,
        }
    return found


@pytest.fixture(scope="module")
def found(two_ranks):
    return two_ranks.run(with_adapters)


@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("when", ["loaded", "adapter changed"])
def test_adapters_are_added_exactly_once(found, active, when):
    for rank in found:
        y, expected = rank[active][when]
        assert y.allclose(expected, atol=1e-5)
        assert y.allclose(rank[active]["without adapters"], atol=1e-3) == (active == "none")


@pytest.mark.parametrize("active", ACTIVE)
def test_the_base_is_cut_and_adapters_stay_whole(found, active):
    for rank in found:
        assert rank[active]["classes"] == (ReleasedParameter, {nn.Parameter})
        assert rank[active]["freed"] == 2 * HIDDEN * HIDDEN * 4 // 2
