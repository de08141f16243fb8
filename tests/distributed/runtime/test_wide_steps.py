"""A step that no graph serves runs unsharded on every rank, each with its own rows, or on none."""

from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from oproj_pass import shard_report
from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.runtime import DecodeRunner
from oproj_pass.weights import gather_layout
from oproj_pass.weights.gather import GatheredWeights
from tests.distributed.runtime.ranks import PATIENCE, TIMEOUT, caught, die
from tests.support.family import VOCABULARY, language_model
from tests.support.quantised import ATTENTION, W8A8Dynamic, model

pytestmark = pytest.mark.distributed
PLAN = plan_capture(StepBound(4, 64), sizes=[2, 4])
ROLES = ("oproj", "mlp", "lmhead", "embedding")
IDLE = None
WIDE, DECODE = ([9, IDLE, 5, 3], [1, 7, 4, 12]), [2, 1, IDLE, 2]
_start_gather = gather_layout.start_gather


def runner_over(module, name, example, options):
    compiled = torch.compile(module, backend="oproj_npu", options={"timeout": 30, **options}, dynamic=False)
    runner = DecodeRunner(
        compiled, PLAN, rows={name: 0}, timeout=TIMEOUT, capture_timeout=60, wide_steps="gather"
    )
    runner.capture({name: example})
    return runner


def sharded_family(kind=None, options=None):
    """A runner over a model whose every role is sharded, and the model."""
    torch._dynamo.reset()
    sizes = {f"{role}_tensor_parallel_size": dist.get_world_size() for role in ROLES}
    module = language_model(**(kind or {}))
    return runner_over(module, "ids", ids(1), {"finegrained_tp_config": sizes, **(options or {})}), module


def ids(num_tokens):
    return torch.randint(VOCABULARY, (num_tokens, 1))


def steps_of_family(kind, options, sabotage=nullcontext):
    runner, module = sharded_family(kind, options)
    held = shard_report(module)
    errors = errors_of(runner, language_model(**kind), "ids", ids, sabotage)
    return {
        **errors,
        "buffers": runner.gather_nbytes,
        "full": [parameter.nbytes for parameter in module.parameters()],
        "keeps its parts alone": shard_report(module) == held,
    }


def steps_of_quantised(options):
    torch._dynamo.reset()
    options = {"oproj_tensor_parallel_size": dist.get_world_size(), "attention_ops": ATTENTION, **options}
    runner = runner_over(model(W8A8Dynamic, hidden=32), "x", rows_of(1), options)
    return errors_of(runner, model(W8A8Dynamic, hidden=32), "x", rows_of)


def rows_of(num_tokens):
    return torch.randn(num_tokens, 64, dtype=torch.bfloat16)


def errors_of(runner, reference, name, brought, sabotage=nullcontext):
    """Differences in wide steps, and in decode steps after each; a rank without rows is idle."""
    rank, found = dist.get_rank(), {"wide": [], "decode": []}
    for kind, counts in (("wide", WIDE[0]), ("decode", DECODE), ("wide", WIDE[1]), ("decode", DECODE)):
        with sabotage():
            if counts[rank] is IDLE:
                runner.idle_step({})
                continue
            x = brought(counts[rank])
            y = runner.step({name: x}).double()
        with torch.inference_mode():
            found[kind].append((y - reference(x).double()).abs().max().item())
    return found


def shards_in_wrong_order():
    def start(parts, mine, group):
        for work in _start_gather(parts, mine, group):
            work.wait()
        parts.copy_(parts.view(group.size, -1).flip(0).flatten())
        return []

    return patch.object(gather_layout, "start_gather", start)


def nothing_arrives():
    def start(parts, mine, group):
        parts.zero_().view(group.size, -1)[group.rank].copy_(mine)
        return []

    return patch.object(gather_layout, "start_gather", start)


def every_case(cases):
    return {name: function(*arguments) for name, (function, *arguments) in cases.items()}


CASES = {
    "row": (steps_of_family, {}, {}),
    "fused, tied": (steps_of_family, {"mlp": "fused", "tied": True}, {}),
    "column": (steps_of_quantised, {"strategy": "column"}),
    "row, quantised": (steps_of_quantised, {}),
}
CONTROLS = {
    "wrong order": (steps_of_family, {}, {}, shards_in_wrong_order),
    "nothing arrives": (steps_of_family, {}, {}, nothing_arrives),
}
GRID = {"grid": (steps_of_family, {"mlp": "plain"}, {"strategy": {"oproj": "grid"}})}


@pytest.mark.parametrize(("world", "cases"), [(2, CASES), (4, GRID)])
def test_equals_the_unsharded_model_bit_by_bit(request, world, cases):
    pool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[world])
    for found in pool.run(every_case, cases, timeout=300):
        for case, of in found.items():
            assert not any(of["wide"]), (case, of)
            assert max(of["decode"], default=0) < (0.5 if "full" not in of else 1e-4), (case, of)
            if "full" in of:
                assert of["keeps its parts alone"]
                assert max(of["full"]) <= of["buffers"] / 2 < 1.2 * max(of["full"])


def test_a_wrong_order_of_shards_shows(two_ranks):
    """The negative control."""
    for found in two_ranks.run(every_case, CONTROLS):
        for case, of in found.items():
            assert min(of["wide"]) > 1e-2, (case, of)
            assert max(of["decode"]) < 1e-4, (case, of)


def without_memory_on_one_rank():
    no_memory = patch.object(GatheredWeights, "_buffer", side_effect=MemoryError("no memory for a buffer"))
    with no_memory if dist.get_rank() == 1 else nullcontext():
        runner, _ = sharded_family()
    outcome = caught(lambda: runner.step({"ids": ids(9)}))
    runner.step({"ids": ids(2)})
    return outcome, runner.gather_nbytes


def test_a_rank_that_cannot_makes_all_refuse_and_serve_on(two_ranks):
    messages = set()
    for (kind, message, _), nbytes in two_ranks.run(without_memory_on_one_rank):
        assert kind == "EagerStepError"
        messages.add(message)
        assert nbytes == 0
    (message,) = messages
    assert "rank 1 cannot: MemoryError: no memory for a buffer" in message


def a_rank_that_dies_in_a_wide_step():
    runner, module = sharded_family()
    if dist.get_rank() == 1:
        module.layers[0].register_forward_pre_hook(lambda *_: die())
    return caught(lambda: runner.step({"ids": ids(9)})), caught(lambda: runner.step({"ids": ids(2)}))


def test_a_dead_rank_is_an_error_on_the_living(two_ranks):
    (kind, value), (dead, _) = two_ranks.outcomes(a_rank_that_dies_in_a_wide_step)
    assert (kind, dead) == ("result", "lost")
    (kind, message, seconds), (again, stopped, _) = value
    assert (kind, again) == ("GroupMismatchError", "GroupMismatchError")
    assert "wide step failed" in message
    assert "rank 1 is lost" in message
    assert "stopped earlier" in stopped
    assert seconds < PATIENCE
