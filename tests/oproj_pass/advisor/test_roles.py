"""The rest of the family: the bytes published for a head and an embedding, and which of them is faster."""

from dataclasses import replace

import pytest

from oproj_pass.advisor.profile import load_profile
from oproj_pass.advisor.roles import role_options
from oproj_pass.advisor.sites import SCHEMES
from oproj_pass.explanation.report import ProjectionRow

HEAD = ProjectionRow(
    "lm_head", "linear", 129280, 7168, "bfloat16", "dense", 129280 * 7168 * 2, 2, 2,
    role="lmhead", padded=True,
)  # fmt: skip
TABLE = replace(HEAD, path="embed_tokens", role="embedding")
MLP = ProjectionRow(
    "layers.0.mlp", "linear", 7168, 18432, "bfloat16", "dense", 3 * 7168 * 18432 * 2, 2, 2, role="mlp"
)


@pytest.fixture
def options():
    def build(*rows, sizes=(8,), scheme="w8a8"):
        return list(
            role_options(
                rows, load_profile("a2"), sizes=sizes, tokens=24, scheme=SCHEMES.get(scheme), framework="vllm"
            )
        )

    return build


def test_a_head_and_an_embedding_save_what_was_published(options):
    head, table = options(HEAD, TABLE)
    assert [f"{found.saved_nbytes / 2**30:.2f}" for found in (head, table)] == ["1.51", "1.51"]
    assert head.step.difference.value < 0 < table.step.difference.value


def test_an_mlp_counts_all_its_weights_in_their_scheme(options):
    (quantised,), (dense,) = options(MLP), options(MLP, scheme=None)
    assert quantised.full_nbytes * 2 == dense.full_nbytes == MLP.nbytes
    assert quantised.step.saved.value < dense.step.saved.value


def test_a_tied_table_counts_once(options):
    tied = replace(TABLE, shares_weight_with="lm_head")
    assert [found.saved_nbytes > 0 for found in options(HEAD, tied)] == [True, False]


def test_a_size_that_does_not_fit_is_left_out(options):
    assert [found.size for found in options(MLP, sizes=(4, 7))] == [4]
