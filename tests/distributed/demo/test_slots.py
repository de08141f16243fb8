"""Decoding in slots gives the tokens of transformers' own generation, whatever else is in the batch."""

from itertools import count

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oproj_pass.demo.reference import reference_answer
from oproj_pass.demo.scheduler import Scheduler
from oproj_pass.demo.serve import empty_rows, step_inputs
from oproj_pass.demo.slots import SlotDecoder
from oproj_pass.deployment import PreemptionPolicy

MAX_NUM_SEQS = 3
MAX_MODEL_LEN = 40


def decode(decoder, requests):
    """Serve the requests on one rank, every step padded to the largest size."""
    scheduler = Scheduler(
        requests,
        decoder,
        stop_token_ids=[decoder.model.config.eos_token_id],
        policy=PreemptionPolicy(2),
        offload_tokens=1000,
    )
    for step in count():
        if not scheduler.num_tokens_left:
            return
        running = scheduler.schedule(step)
        if running:
            rows, padding = step_inputs(running), empty_rows(MAX_NUM_SEQS - len(running))
            with torch.inference_mode():
                logits = decoder(**{name: torch.cat([rows[name], padding[name]]) for name in rows})
            scheduler.update(logits.argmax(-1).tolist()[: len(running)])


@pytest.fixture(scope="module")
def decoder(tiny_model):
    return SlotDecoder(tiny_model, MAX_NUM_SEQS, MAX_MODEL_LEN)


prompts = st.lists(st.integers(3, 511), min_size=1, max_size=10)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrivals=st.lists(st.tuples(prompts, st.integers(0, 12)), min_size=1, max_size=6))
def test_every_request_gets_the_tokens_it_would_get_alone(decoder, request_of, arrivals):
    requests = [request_of(f"r{i}", p, arrival_step=step) for i, (p, step) in enumerate(arrivals)]
    decode(decoder, requests)
    for request in requests:
        assert request.output_token_ids == reference_answer(decoder.model, request)


def test_a_preempted_request_goes_on_where_it_was(decoder, request_of):
    requests = [request_of(f"r{i}", [10 + i, 20, 30]) for i in range(MAX_NUM_SEQS)]
    requests.append(request_of("urgent", [7, 8, 9, 10, 11, 12], arrival_step=4, urgent=True))
    decode(decoder, requests)
    assert [request.num_preemptions for request in requests] == [1, 0, 0, 0]
    for request in requests:
        assert request.output_token_ids == reference_answer(decoder.model, request)


def test_tokens_differ_when_the_offloaded_cache_does_not_come_back(decoder, request_of, monkeypatch):
    monkeypatch.setattr(SlotDecoder, "copy_in", lambda self, slot, saved: None)
    requests = [request_of(f"r{i}", [10 + i, 20, 30]) for i in range(MAX_NUM_SEQS)]
    requests.append(request_of("urgent", [7, 8, 9, 10, 11, 12], arrival_step=4, urgent=True))
    decode(decoder, requests)
    (preempted,) = [request for request in requests if request.num_preemptions]
    assert preempted.output_token_ids != reference_answer(decoder.model, preempted)


def test_pad_rows_leave_every_slot_alone(decoder):
    before = decoder.keys[:, 1:].clone(), decoder.values[:, 1:].clone()
    with torch.inference_mode():
        decoder(**empty_rows(MAX_NUM_SEQS))
    assert torch.equal(decoder.keys[:, 1:], before[0])
    assert torch.equal(decoder.values[:, 1:], before[1])
