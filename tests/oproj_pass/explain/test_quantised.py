"""What explain says of quantised projections: schemes, what a token sends with its scales, what fits."""

import pytest
import torch
from rich.console import Console

from oproj_pass.explanation import explain
from tests.support import layouts, quantised
from tests.support.layouts import layout
from tests.support.quantised import ATTENTION, Model, model

K, H, N = 64, 24, 4
CONFIG = {"attention_ops": ATTENTION}


def report(module, features=K, dtype=torch.bfloat16):
    return explain(module, torch.randn(3, features).to(dtype), config=CONFIG)


@pytest.mark.parametrize(
    ("kind", "scheme", "sent"),
    [
        (quantised.W8A8Static, "w8a8_static", K * 3 // 4 + H * 2 * 3),
        (quantised.W8A8Dynamic, "w8a8_dynamic", K * 3 // 4 + 4 * 3 + H * 2 * 3),
        (quantised.IntMM, "int_mm", K * 3 // 4 + H * 4 * 3),
        (quantised.ScaledRow, "scaled_mm_row", K * 3 // 4 + 4 * 3 + H * 2 * 3),
    ],
)
def test_counts_features_scales_and_partial_sums_in_their_own_types(kind, scheme, sent):
    (row,) = report(model(kind)).projections
    assert (row.scheme, row.nbytes, row.sent_nbytes(N)) == (scheme, K * H, sent)
    assert row.saved_nbytes(N) == K * H * 3 // 4


def test_counts_block_scales_with_the_weight_and_with_the_features():
    module = model(quantised.ScaledBlock, features=512, hidden=128).to("meta")  # no CPU runs it
    x = torch.empty(3, 512, dtype=torch.bfloat16, device="meta")
    (row,) = explain(module, x, config=CONFIG).projections
    assert row.nbytes == 512 * 128 + 4 * 4
    assert row.sent_nbytes(N) == 512 * 3 // 4 + 4 * 4 * 3 // 4 + 128 * 2 * 3


def test_says_which_sizes_cut_no_group():
    shown = report(Model(layout(layouts.Groups, features=96)), 96, torch.float32)
    assert shown.fitting_sizes == (2, 3, 6)
    console = Console(width=160, force_terminal=False)
    with console.capture() as capture:
        console.print(shown)
    text = capture.get()
    assert "[24, 96] weight_only" in text
    assert "N = 4 does not divide K = 96 (groups of 16 features) of o_proj" in text
