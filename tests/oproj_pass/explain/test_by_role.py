"""What a report says of each role, and of all of them together."""

import torch

from oproj_pass.explanation import ExplainReport, ProjectionRow, explain
from oproj_pass.explanation.by_role import saved_as_configured
from oproj_pass.passes import NearMiss
from tests.oproj_pass.explain.test_report import text
from tests.passes.sites.test_roles import Model

FACTS = {"gemm": "linear", "dtype": "int8", "scheme": "dense", "input_itemsize": 1, "partial_itemsize": 2}


def row(path, out_features, in_features, weights=1, **facts):
    nbytes = weights * out_features * in_features
    return ProjectionRow(
        path, out_features=out_features, in_features=in_features, nbytes=nbytes, **facts | FACTS
    )


def of_vocabulary(role, strategy):
    """Not quantised: two bytes a weight."""
    return row(role, 129280, 7168, 2, role=role, strategy=strategy, cut=129280, padded=True)


R1 = [  # DeepSeek-R1 in W8A8
    *(row(f"layers.{i}.self_attn.o_proj", 7168, 16384) for i in range(61)),
    *(row(f"layers.{i}.mlp", 7168, 18432, 3, role="mlp", strategy="column_row") for i in range(3)),
    of_vocabulary("lmhead", "column"),
    of_vocabulary("embedding", "vocabulary"),
]
EXPERTS = NearMiss("layers.3.mlp.experts", "holds 256 routed experts", 256 * 3 * 7168 * 2048, role="mlp")


def report(**sizes):
    return ExplainReport("R1", sizes.get("oproj", "auto"), tuple(R1), (EXPERTS,), (), 1, sizes)


def test_sums_up_each_role_at_its_own_size():
    totals = {total.role: total for total in report(oproj=8, mlp=8, lmhead=8, embedding=8).by_role()}
    saved = {role: f"{total.saved_nbytes[8] / 2**30:.2f}" for role, total in totals.items()}
    assert saved == {"oproj": "5.84", "mlp": "0.97", "lmhead": "1.51", "embedding": "1.51"}
    assert (totals["mlp"].sites, totals["mlp"].left_nbytes) == (3, EXPERTS.nbytes)


def test_adds_up_roles_of_different_sizes():
    totals = report(oproj=8, mlp=2, lmhead=4, embedding=4).by_role()
    assert saved_as_configured(totals) == sum(total.saved_nbytes[total.size] for total in totals)


def test_adds_nothing_up_where_a_size_is_open():
    assert saved_as_configured(report(oproj="auto", mlp=2, lmhead=4, embedding=4).by_role()) is None


def test_prints_a_line_for_each_role_and_one_for_all():
    lines = [line.split() for line in text(report(oproj=8, mlp=8, lmhead=8, embedding=8)).splitlines()]
    start = lines.index(["By", "role"])
    assert [line[0] for line in lines[start + 2 : start + 7]] == [
        "oproj",
        "mlp",
        "lmhead",
        "embedding",
        "all",
    ]


def test_prints_no_roles_for_output_projections_alone():
    assert "By role" not in text(ExplainReport("R1", 8, tuple(R1[:61]), (), (), 1))


def test_explains_every_role_of_a_model():
    config = {"finegrained_tp_config": dict.fromkeys(
        ["oproj_tensor_parallel_size", "mlp_tensor_parallel_size", "lmhead_tensor_parallel_size",
         "embedding_tensor_parallel_size"], 2)}  # fmt: skip
    found = explain(Model(), torch.arange(6).view(2, 3), config=config).to_dict()
    assert {role: total["sites"] for role, total in found["roles"].items()} == dict.fromkeys(
        ["oproj", "mlp", "lmhead", "embedding"], 1
    )
    assert found["roles"]["lmhead"]["full_nbytes"] == 4 * 97 * 32
