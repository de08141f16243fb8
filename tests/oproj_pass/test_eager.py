"""A projection that runs eager says what made it: the shape, or the number, that used up Dynamo's limit."""

import pytest
import torch

from oproj_pass.errors import EagerStepError
from tests.support.fake import fake_world
from tests.support.models import decoder, rows


class Counting(torch.nn.Module):
    """A decoder that counts its calls, if ``counts``."""

    def __init__(self, counts):
        super().__init__()
        self.decoder, self.counts, self.calls = decoder(layers=1), counts, 0

    def forward(self, x):
        self.calls += self.counts
        return self.decoder(x) + self.calls


@pytest.mark.parametrize(
    ("counts", "remedy"),
    [
        (True, "`self.calls` is a Python number.*pass it as a tensor"),
        (False, "last failed guard .*'x' size mismatch.*mark the row dimension dynamic"),
    ],
)
def test_what_used_up_the_recompile_limit_is_named(counts, remedy):
    model = torch.compile(Counting(counts).requires_grad_(False), backend="oproj_npu", dynamic=False)
    limit = rf"recompile limit \(2\) is reached for `forward`.*{remedy}"
    with fake_world(2), torch._dynamo.config.patch(recompile_limit=2):
        for num_tokens in (2, 3):
            model(rows(2 if counts else num_tokens, 32))
        with pytest.raises(EagerStepError, match=limit):
            model(rows(2 if counts else 4, 32))
