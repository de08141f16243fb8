"""Which lookups are of a vocabulary: ids that come with the batch, in a table that can be shared."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oproj_pass.passes import Globs, Lookup, find_roles
from tests.support.traced import names_of, traced

V, HIDDEN = 19, 8
IDS = torch.arange(6).view(2, 3)
TABLE = torch.randn(V, HIDDEN)


def search_lookups(function, *stored, activations=(IDS,)):
    gm = traced(function, *activations, *stored)
    sites, misses = find_roles(gm, {"embedding": Globs()}, parameters=names_of(gm, stored))
    return sites, [miss.reason for miss in misses]


VOCABULARY = {
    "embedding": lambda ids, table: F.embedding(ids, table),
    "padding index": lambda ids, table: F.embedding(ids, table, 0),
    "torch's": lambda ids, table: torch.embedding(table, ids),
    "scaled": lambda ids, table: F.embedding(ids, table) * HIDDEN**0.5,
    "in bfloat16": lambda ids, table: F.embedding(ids, table.to(torch.bfloat16)),
    "shifted": lambda ids, table: F.embedding((ids + 2).clamp(max=V - 1), table),
    "masked": lambda ids, table: F.embedding(torch.where(ids > 3, 0, ids), table),
    "one column": lambda ids, table: F.embedding(ids[:, 1:2].long(), table),
    "rows": lambda ids, table: table.index_select(0, ids.flatten()),
}


@pytest.mark.parametrize("name", VOCABULARY)
def test_takes_a_lookup_of_ids_of_the_batch(name):
    (site,), misses = search_lookups(VOCABULARY[name], TABLE)
    assert misses == []
    assert isinstance(site, Lookup)
    assert (site.vocabulary, site.features, site.nbytes) == (V, HIDDEN, 4 * V * HIDDEN)
    assert (site.weight.node.name, site.weight.dim) == ("table", 0)
    assert site.padding_idx == (0 if name == "padding index" else None)


def test_takes_several_codebooks_each_by_itself():
    def function(ids, first, second):
        return F.embedding(ids[:, 0], first) + F.embedding(ids[:, 1], second)

    sites, misses = search_lookups(function, TABLE, TABLE.clone())
    assert misses == []
    assert [site.weight.path for site in sites] == ["first", "second"]


OTHERS = {
    "positions": (lambda ids, t: F.embedding(torch.arange(3), t) + ids[..., None], "as a table of positions"),
    "counted positions": (
        lambda ids, t: F.embedding(ids.ne(0).int().cumsum(1).long(), t),
        "as a table of positions",
    ),
    "norm": (lambda ids, t: F.embedding(ids, t, max_norm=1.0), "rescales rows of its table in place"),
    "sparse": (lambda ids, t: F.embedding(ids, t, sparse=True), "asks for sparse gradients"),
    "bag": (lambda ids, t: F.embedding_bag(ids, t), "sums the rows of its table"),
    "index": (lambda ids, t: t[ids], "is looked up by an index"),
    "other reader": (lambda ids, t: F.embedding(ids, t) + t.mean(0), "is also read by `mean`"),
    "columns": (lambda ids, t: F.embedding(ids, t.T), "stored with its entries as columns"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_names_a_lookup_that_is_left_alone_with_its_bytes(name):
    function, reason = OTHERS[name]
    gm = traced(function, IDS, TABLE)
    sites, (miss,) = find_roles(gm, {"embedding": Globs()}, parameters={"t": "table"})
    assert sites == []
    assert reason in miss.reason
    assert (miss.role, miss.nbytes) == ("embedding", 4 * V * HIDDEN)


def test_takes_no_table_of_quantised_numbers():
    sites, (reason,) = search_lookups(VOCABULARY["embedding"], TABLE.to(torch.int8))
    assert sites == []
    assert reason == "has a table of torch.int8, a quantisation scheme that is not supported"


def test_takes_no_table_that_was_computed(search_roles):
    """A rotary embedding's angles are a buffer, whatever looks them up."""

    class Angles(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(V, HIDDEN)
            self.register_buffer("angles", torch.randn(V, HIDDEN))

        def forward(self, ids):
            return self.embed(ids) * F.embedding(ids, self.angles)

    found = search_roles(Angles(), IDS)
    assert (found.paths, found.misses) == (["embed"], [])
