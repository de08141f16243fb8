"""Explaining a model with more roles than output projections: each role's sites, bytes and exchanges."""

import json
from collections import Counter

import oproj_pass
from tests.support.family import HIDDEN, VOCABULARY, ids, language_model

SIZES = {
    "oproj_tensor_parallel_size": 4, "mlp_tensor_parallel_size": 4, "lmhead_tensor_parallel_size": 4,
    "embedding_tensor_parallel_size": 4,
}  # fmt: skip
TABLE, PART = 4 * HIDDEN * VOCABULARY, 4 * HIDDEN * 25


def report(config=SIZES, **model):
    return oproj_pass.explain(language_model(layers=3, **model), ids(2, 3), config=config)


def test_lists_the_sites_of_every_role_that_is_on():
    found = report()
    by_role = Counter(row.role for row in found.projections)
    assert by_role == {"oproj": 3, "mlp": 3, "lmhead": 1, "embedding": 1}
    assert "head" not in [row.path for row in report({"mlp_tensor_parallel_size": 2}).projections]
    json.dumps(found.to_dict())


def test_counts_what_a_padded_part_keeps():
    embedding = report().projections[-1]
    assert (embedding.nbytes, embedding.saved_nbytes(4)) == (TABLE, TABLE - PART)


def test_counts_a_tied_weight_once():
    head, embedding = report(tied=True).projections[-2:]
    assert head.saved_nbytes(4) == TABLE - PART
    assert (embedding.shares_weight_with, embedding.saved_nbytes(4)) == ("head", 0)


def test_an_id_travels_whole_and_a_row_of_the_table_comes_back():
    assert report().projections[-1].sent_nbytes(4) == 3 * (8 + 4 * HIDDEN)
