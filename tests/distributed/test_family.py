"""All roles at once on real ranks: pairs share MLPs, all four the head and the embedding."""

from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file

import oproj_pass
from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.runtime import DecodeRunner
from oproj_pass.weights.placement import Placement
from tests.support.family import HIDDEN, VOCABULARY, ids, language_model

pytestmark = pytest.mark.distributed

SIZES = {
    "oproj_tensor_parallel_size": 2, "mlp_tensor_parallel_size": 2, "lmhead_tensor_parallel_size": 4,
    "embedding_tensor_parallel_size": 4,
}  # fmt: skip


def compiled(model, dynamic=False, **options):
    return torch.compile(model, backend="oproj_npu", options=SIZES | options, fullgraph=True, dynamic=dynamic)


def collectives_of(call):
    with torch.profiler.profile() as profile:
        call()
    return [event.name for event in profile.events() if event.name.startswith("_c10d_functional::")]


@torch.inference_mode()
def facts(options, tied=False, mlp="gated", dynamic=False, shapes=((2, 3), (1, 5))):
    """A model's error over two steps, what was freed, and whether its weights come back."""
    model, reference = (language_model(mlp, layers=2, tied=tied) for _ in range(2))
    step = compiled(model, dynamic, **options)
    errors = [(step(tokens) - reference(tokens)).abs().max().item() for tokens in (ids(*s) for s in shapes)]
    freed = {role: report.freed_nbytes for role, report in oproj_pass.shard_report(model).by_role.items()}
    whole = oproj_pass.full_state_dict(model)
    same = all(torch.equal(whole[name], value) for name, value in reference.state_dict().items())
    return max(errors), freed, same


def freed_of(rows, columns, parts, padded=0):
    return 4 * columns * (rows - (rows + padded) // parts)


def test_equals_the_unsharded_model_and_frees_what_theory_says(four_ranks):
    table = freed_of(VOCABULARY, HIDDEN, 4, padded=3)
    for error, freed, same in four_ranks.run(facts, {}, False, "gated", True, [(2, 3), (4, 5)]):
        assert error < 1e-5
        assert same
        assert freed["oproj"] == 2 * 4 * HIDDEN * HIDDEN // 2
        assert freed["embedding"] == table
        assert freed["lmhead"] == table + freed_of(VOCABULARY, 1, 4, padded=3)
        assert freed["mlp"] == 2 * 4 * (3 * 48 * HIDDEN + 48) // 2


def test_a_tied_embedding_and_head_are_one_shard(four_ranks):
    for error, freed, same in four_ranks.run(facts, {}, True, "fused"):
        assert error < 1e-4
        assert same
        assert {role for role in freed if "lmhead" in role} == {"lmhead+embedding"}
        assert freed["lmhead+embedding"] == freed_of(VOCABULARY, HIDDEN, 4, padded=3)


def next_ranks_part(placement, full):
    group = placement.group
    return placement.only_split.part_of(full, (group.rank + 1) % group.size, group.size)


def sabotaged():
    with patch.object(Placement, "part_of", next_ranks_part):
        return facts({"mlp_tensor_parallel_size": 0}, shapes=[(2, 3)])[0]


def test_parity_fails_when_a_rank_takes_another_ones_part(four_ranks):
    """The negative control; each role's exchange is sabotaged in the tests of the strategies."""
    assert min(four_ranks.run(sabotaged)) > 1e-3


@torch.inference_mode()
def refused(options, tied=True, **model):
    model = language_model(tied=tied, **model)
    with pytest.raises(oproj_pass.errors.OProjError) as refusal:
        torch.compile(model, backend="oproj_npu", options=options, fullgraph=True)(ids(2, 3))
    untouched = type(model.embed.weight) is torch.nn.Parameter
    return type(refusal.value).__name__, str(refusal.value), untouched


@pytest.mark.parametrize(
    ("options", "tied", "expected"),
    [
        (
            SIZES | {"embedding_tensor_parallel_size": 2},
            True,
            ("ConfigError", "share one weight, and lmhead"),
        ),
        (SIZES | {"embedding_tensor_parallel_size": 0}, True, ("SiteMismatchError", "no LM head to shard")),
        ({"lmhead_tensor_parallel_size": 3}, False, ("ConfigError", "lmhead_tensor_parallel_size = 3 does")),
    ],
)
def test_refuses_before_anything_is_changed(four_ranks, options, tied, expected):
    for kind, message, untouched in four_ranks.run(refused, options, tied):
        assert kind == expected[0]
        assert expected[1] in message
        assert untouched


def loaded(folder):
    with torch.device("meta"):
        model = language_model()
    report = oproj_pass.load_sharded(model, folder, SIZES, example_args=(torch.zeros(1, 1, dtype=int),))
    tokens = ids(2, 3)
    with torch.inference_mode():
        error = (compiled(model)(tokens) - language_model()(tokens)).abs().max().item()
    return error, {weight.role for weight in report.weights}


def test_each_rank_loads_its_parts_only(four_ranks, tmp_path):
    save_file(language_model().state_dict(), tmp_path / "model.safetensors")
    for error, roles in four_ranks.run(loaded, tmp_path):
        assert error < 1e-5
        assert roles == {"oproj", "mlp", "lmhead", "embedding"}


def serving():
    """Rank 1 has no requests; the head runs on the rows that each request samples."""
    model, reference = language_model(), language_model()
    plan = plan_capture(StepBound(4, 64), sizes=[4])
    runner = DecodeRunner(compiled(model), plan, rows={"ids": 0, "sampled": 0})
    one = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    runner.capture(dict(zip(("ids", "sampled"), one, strict=True)))
    idle, errors = dist.get_rank() == 1, []

    def step():
        if idle:
            runner.idle_step({})
            return
        tokens, sampled = ids(3, 1), torch.arange(3)
        logits = runner.step({"ids": tokens, "sampled": sampled})
        errors.append((logits - reference(tokens, sampled)).abs().max().item())

    with torch.inference_mode():
        return [collectives_of(step) for _ in range(2)], errors, runner._group.ranks


def test_an_idle_rank_runs_the_head_as_often_as_a_busy_one(four_ranks):
    found = four_ranks.run(serving)
    traces = [trace for by_step, _, _ in found for trace in by_step]
    assert traces[0]
    assert all(trace == traces[0] for trace in traces)
    assert all(error < 1e-5 for _, errors, _ in found for error in errors)
    assert {ranks for _, _, ranks in found} == {(0, 1, 2, 3)}
