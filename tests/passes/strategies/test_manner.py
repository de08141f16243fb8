"""A region says how its rows travel, for reports: only what it has a choice of."""

import pytest
import torch
from torch import nn

from tests.support.strategies import module_of, rows, sharded


@pytest.mark.parametrize(
    ("strategy", "options", "manner"),
    [
        ("row", {}, "row, scatter"),
        ("row", {"reduce": "exchange", "chunks": 2}, "row, exchange, 2 chunks"),
        ("row", {"reduce": "exchange", "chunks": 2, "least_chunk_nbytes": 2**30}, "row, exchange"),
        ("column", {"reduce": "exchange"}, "column"),
        ("grid", {"reduce": "exchange", "mesh": (2, 2)}, "grid (2, 2), exchange"),
    ],
)
def test_names_what_was_written(strategy, options, manner):
    size = 4 if strategy == "grid" else 2
    module, options = module_of(nn.Linear), {"least_chunk_nbytes": 0, **options}
    (region,) = sharded(module, rows(size, 6, 64), strategy, **options).record.regions
    assert region.manner == manner


def test_an_embedding_has_one_way_to_add():
    module = Embedded()
    xs = [torch.randint(0, 97, (3,)) for _ in range(2)]
    (region,) = sharded(module, xs, roles=("embedding",), reduce="exchange").record.regions
    assert region.manner == "vocabulary, scatter"


class Embedded(nn.Module):
    """A lookup and something that reads it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(97, 8)

    def forward(self, ids):
        return 2 * self.table(ids)
