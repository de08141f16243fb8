"""An engine's series at ``/metrics`` of its API server, which is another process than the engine's worker."""

from contextlib import suppress
from math import isnan

import pytest

from tests.vllm.support.engine import COMPILED, build_engine, greedy
from tests.vllm.support.process import run_ranks
from tests.vllm.support.served_metrics import ours, scrape

pytestmark = pytest.mark.timeout(900)  # several engines start, one after the other

APART = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # an API server, an engine and its worker: three processes a rank
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions may be sent to the worker
}
LAYERS, HIDDEN, IN_FEATURES, VOCABULARY, CAPACITY, REQUESTS = 2, 128, 256, 512, 256, 8
OPROJ_A_ROW = LAYERS * (IN_FEATURES // 2 * 4 + HIDDEN * 4)  # half of x, and the other rank's partial sums
HEAD_A_ROW = HIDDEN * 4 + VOCABULARY // 2 * 4  # a row to the other rank, and half of its logits
FREED = {"oproj": LAYERS * HIDDEN * IN_FEATURES * 4 // 2, "lmhead": VOCABULARY * HIDDEN * 4 // 2}


def stop_compiling(worker):
    worker.model_runner.model.model.do_not_compile = True


def answers(rank, model, plugin, sizes):
    """Scrapes: after 6 tokens on both ranks; after 5 more on rank 1, of which rank 0 makes one and idles;
    after a refused change of weights; after a step that is refused, which ends the engine."""
    from tests.vllm.support.cpu_plugin import use

    use(plugin)
    llm = build_engine(model, size=sizes, compilation=COMPILED)
    found, refusals = [], []

    def attempt(call):
        try:
            call()
        except Exception as error:  # the test says which it must be
            refusals.append(f"{type(error).__name__}: {error}")
        found.append(scrape())

    attempt(lambda: greedy(llm, [[5 + rank, 6, 7]], 6))
    attempt(lambda: greedy(llm, [[5 + rank, 6]], 5 if rank else 1))
    if sizes:
        attempt(lambda: llm.collective_rpc("reload_weights"))
        llm.collective_rpc(stop_compiling)
        attempt(lambda: greedy(llm, [[5, 6, 7]]))
    return found, refusals


@pytest.fixture(scope="module")
def served(checkpoints, tmp_path_factory):
    sizes, plugin = dict.fromkeys(FREED, 2), tmp_path_factory.mktemp("plugin")
    return run_ranks(answers, checkpoints["qwen3_moe"], plugin, sizes, environment=APART)


def test_counts_are_those_of_the_steps_that_ran(served):
    for rank, (texts, _) in enumerate(served):
        engine, (before, after) = str(rank), map(ours, texts[:2])
        assert before["steps_total", engine, "eager"] - before["idle_steps_total", engine] == 6
        assert after["steps_total", engine, "eager"] - after["idle_steps_total", engine] == 6 + (1, 5)[rank]
        assert after["idle_steps_total", engine] >= (4, 0)[rank]
        for found in (before, after):
            steps = found["steps_total", engine, "eager"]
            assert found["steps_total", engine, "replayed"] == found["steps_total", engine, "wide"] == 0
            assert found["agreement_seconds_count", engine] == steps
            sent = steps * (CAPACITY * OPROJ_A_ROW + REQUESTS * HEAD_A_ROW)
            assert found["sent_bytes_total", engine] == sent


def test_says_over_how_many_ranks_and_what_that_freed(served):
    for rank, (texts, _) in enumerate(served):
        for found in map(ours, texts):
            for role, nbytes in FREED.items():
                assert found["tensor_parallel_size", str(rank), role] == 2
                assert found["freed_bytes", str(rank), role] == nbytes


def test_a_refusal_is_counted_and_served_even_if_it_ended_the_engine(served):
    for rank, (texts, (reload, step)) in enumerate(served):
        assert "reload_weights: this engine loaded its output projections by slice" in reload
        assert step.startswith("EngineDeadError")
        refusals = [
            {
                tuple(labels): count
                for (name, *labels), count in ours(text).items()
                if name == "refusals_total"
            }
            for text in texts
        ]
        engine = str(rank)
        assert refusals[:2] == [{}, {}]
        assert refusals[2] == {(engine, "reload_weights"): 1}
        assert refusals[3] == {(engine, "reload_weights"): 1, (engine, "cannot_replay"): 1}
        steps = [ours(text)["steps_total", engine, "eager"] for text in texts]
        assert steps[1] == steps[2]


def reasons_of_refusals(rank, model):
    """Refusals by reason after eager steps of 16 and of 600 tokens, where graphs hold up to 512."""
    from tests.vllm.support.configuration import build, start

    start()
    from vllm.config import CUDAGraphMode

    from oproj_pass.errors import EagerStepError
    from oproj_pass.integrations.vllm.guard import require_graph
    from oproj_pass.integrations.vllm.metrics import EngineSteps

    engine, config = EngineSteps(), build(model, 2, max_num_seqs=512)
    for num_tokens in (16, 600):
        context = {
            "vllm_config": config, "cudagraph_runtime_mode": CUDAGraphMode.NONE, "num_tokens": num_tokens,
        }  # fmt: skip
        with suppress(EagerStepError), engine.step(idle=False):
            engine.forward(context)
            require_graph(config, CUDAGraphMode.NONE, context)
    return dict(engine.measured.counts.refusals)


def test_the_guard_s_refusals_are_told_apart_by_the_largest_captured_size(checkpoints):
    (found,) = run_ranks(reasons_of_refusals, checkpoints["qwen3_moe"], world=1)
    assert found == {"cannot_replay": 1, "oversize": 1}


def written(rank, folder):
    """What a worker's numbers are in vLLM's own folder, and what one without a folder gets and says."""
    import logging
    import os

    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    from oproj_pass.integrations.vllm.metrics_files import MetricsFiles, share_folder
    from oproj_pass.metrics.counts import StepCounts
    from oproj_pass.metrics.series import Measured
    from tests.vllm.support.configuration import Records

    logging.getLogger("oproj_pass").setLevel(logging.WARNING)
    records = Records()
    lacking = MetricsFiles.of("model", "3")
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    share_folder()
    counts = StepCounts()
    counts.add_step("replayed", None, idle=False)
    counts.agreements.add(0.02)
    MetricsFiles.of("model", "3").write(Measured(counts))
    MultiProcessCollector(registry := CollectorRegistry())
    return (
        ours(generate_latest(registry).decode()),
        lacking,
        records.take(),
        "OPROJ_METRICS_DIR" in os.environ,
    )


def test_several_api_servers_serve_what_lies_in_vllm_s_own_folder(tmp_path):
    ((found, lacking, (said,), own_folder),) = run_ranks(written, tmp_path, world=1)
    assert found["steps_total", "3", "replayed"] == 1
    assert found["agreement_seconds_sum", "3"] == 0.02
    assert isnan(found["sent_bytes_total", "3"])
    assert (lacking, own_folder) == (None, False)
    assert "engine 3: the series vllm:oproj_… are not served" in said


def test_without_the_knob_there_are_no_such_series(checkpoints, tmp_path):
    for texts, refusals in run_ranks(answers, checkpoints["qwen3_moe"], tmp_path, 0):
        assert [ours(text) for text in texts] == [{}, {}]
        assert "python_info" in texts[0]
        assert not refusals
