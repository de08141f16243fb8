"""MLPs and heads in every scheme that attention's projections may have."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oproj_pass.passes.gemm.axes import Axis
from tests.support import quantised

HIDDEN, INTER, V = 256, 512, 640
X = torch.randn(2, HIDDEN, dtype=torch.bfloat16)
KINDS = [
    quantised.W8A8Dynamic,
    quantised.W8A8Static,
    quantised.ScaledTensor,
    quantised.ScaledStatic,
    quantised.ScaledRow,
    quantised.ScaledBlock,
]


class Mlp(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.gate_up, self.down = kind(HIDDEN, 2 * INTER, bias=False), kind(INTER, HIDDEN, bias=False)
        self.head = kind(HIDDEN, V, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        y = x + self.down(F.silu(gate) * up)
        return self.head(F.rms_norm(y, (HIDDEN,)))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_takes_mlp_and_head(kind, search_roles):
    found = search_roles(Mlp(kind).eval(), X, run=False)  # no CPU multiplies by blocks
    assert found.misses == []
    mlp, head = found.sites
    assert (mlp.role, head.role) == ("mlp", "lmhead")
    cut = {on.path: on.segments for on in mlp.stored}
    assert (cut["gate_up.weight"], cut["down.weight"]) == (2, 1)
    assert head.along(Axis.H).extent == V


def test_names_a_scale_that_is_applied_behind_the_sum(search_roles):
    """Every rank would have its own scale for its part, and the int32 sum is of all parts."""
    found = search_roles(Mlp(quantised.IntMM).eval(), X)
    assert [site.role for site in found.sites] == ["lmhead"]
    (reason,) = found.missed.values()
    assert "has an intermediate result that is also read by" in reason


def test_names_gate_and_up_whose_rows_are_quantised_by_scales_of_their_own(search_roles):
    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = (quantised.W8A8Static(HIDDEN, INTER, bias=False) for _ in range(2))
            self.down = quantised.W8A8Static(INTER, HIDDEN, bias=False)

        def forward(self, x):
            return x + self.down(F.silu(self.gate(x)) * self.up(x))

    found = search_roles(Apart(), X)
    assert list(found.missed.values()) == ["multiplies results of GEMMs that read different inputs"]
