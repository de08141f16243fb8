"""Who runs, who waits, and who makes room."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oproj_pass.demo.scheduler import Scheduler
from oproj_pass.demo.slots import SlotDecoder
from oproj_pass.deployment import PreemptionPolicy
from oproj_pass.errors import ConfigError

NUM_SLOTS = 2
STOP = 1


@pytest.fixture(scope="module")
def decoder(tiny_model):
    return SlotDecoder(tiny_model, NUM_SLOTS, max_model_len=16)


@pytest.fixture
def scheduler_of(decoder):
    def make(requests, *, size=2, offload_tokens=100):
        policy = PreemptionPolicy(size)
        return Scheduler(
            requests, decoder, stop_token_ids=[STOP], policy=policy, offload_tokens=offload_tokens
        )

    return make


def run_steps(scheduler, steps, token_id=2):
    for step in steps:
        scheduler.update([token_id] * len(scheduler.schedule(step)))


def test_computes_the_prompt_before_it_answers(scheduler_of, request_of):
    request = request_of("r", [5, 6, 7], max_tokens=2)
    scheduler = scheduler_of([request])
    brought = []
    for step in range(4):
        brought += [running.next_token_id for running in scheduler.schedule(step)]
        scheduler.update([9])
    assert brought == [5, 6, 7, 9]
    assert request.output_token_ids == [9, 9]
    assert request.finish_reason == "length"


def test_a_stop_token_ends_the_answer_and_frees_the_slot(scheduler_of, request_of):
    requests = [request_of(name, [5]) for name in "abc"]
    scheduler = scheduler_of(requests)
    run_steps(scheduler, [0], token_id=STOP)
    assert [request.finish_reason for request in requests] == ["stop", "stop", None]
    assert scheduler.schedule(1) == [requests[2]]


def test_a_request_waits_while_all_slots_are_taken(scheduler_of, request_of):
    requests = [request_of(name, [5]) for name in "abc"]
    assert scheduler_of(requests).schedule(0) == requests[:NUM_SLOTS]


def test_an_urgent_request_takes_the_slot_of_the_last_arrival(scheduler_of, request_of):
    first, last = request_of("first", [5]), request_of("last", [5], arrival_step=1)
    urgent = request_of("urgent", [5], arrival_step=2, urgent=True)
    scheduler = scheduler_of([first, last, urgent])
    run_steps(scheduler, [0, 1])
    assert scheduler.schedule(2) == [first, urgent]
    assert last.num_preemptions == 1
    assert last.finish_reason is None


def test_urgent_requests_do_not_preempt_each_other(scheduler_of, request_of):
    requests = [request_of(name, [5], urgent=True) for name in "abc"]
    assert scheduler_of(requests).schedule(0) == requests[:NUM_SLOTS]


def test_aborts_a_request_that_the_offload_buffer_cannot_hold(scheduler_of, request_of):
    requests = [request_of("a", [5, 6, 7]), request_of("b", [5, 6, 7])]
    urgent = request_of("urgent", [5], arrival_step=2, urgent=True)
    scheduler = scheduler_of([*requests, urgent], offload_tokens=1)
    run_steps(scheduler, [0, 1])
    assert urgent in scheduler.schedule(2)
    (aborted,) = [request for request in requests if request.finish_reason == "abort"]
    assert "2 tokens of cache, room for 1" in aborted.error
    assert aborted.num_tokens_left == 0


def test_recomputes_instead_of_aborting_where_nothing_is_sharded(scheduler_of, request_of):
    requests = [request_of("a", [5, 6, 7]), request_of("b", [5, 6, 7])]
    urgent = request_of("urgent", [5], arrival_step=2, urgent=True)
    scheduler = scheduler_of([*requests, urgent], size=1, offload_tokens=1)
    run_steps(scheduler, [0, 1])
    scheduler.schedule(2)
    (waiting,) = [request for request in requests if request.slot is None]
    assert waiting.finish_reason is None
    assert waiting.num_computed_tokens == 0


def test_a_recomputed_request_keeps_the_tokens_it_had_answered(scheduler_of, request_of):
    requests = [request_of("a", [5]), request_of("b", [5])]
    urgent = request_of("urgent", [5], max_tokens=1, arrival_step=2, urgent=True)
    scheduler = scheduler_of([*requests, urgent], size=1, offload_tokens=0)
    for step in range(20):
        scheduler.update([2 + request.num_computed_tokens for request in scheduler.schedule(step)])
    assert urgent.finish_reason == "length"
    assert requests[0].output_token_ids == requests[1].output_token_ids == [2, 3, 4, 5, 6, 7]


def test_refuses_a_request_longer_than_a_slot(scheduler_of, request_of):
    with pytest.raises(ConfigError, match=r"request long: 12 prompt tokens and max_tokens = 6 .* = 16"):
        scheduler_of([request_of("long", [5] * 12)])


arrivals = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 20), st.booleans()), max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrivals=arrivals, offload_tokens=st.integers(0, 20))
def test_every_request_ends_and_no_two_ever_share_a_slot(scheduler_of, request_of, arrivals, offload_tokens):
    requests = [
        request_of(f"r{i}", [5] * length, arrival_step=step, urgent=urgent)
        for i, (length, step, urgent) in enumerate(arrivals)
    ]
    scheduler = scheduler_of(requests, offload_tokens=offload_tokens)
    for step in range(200):
        running = scheduler.schedule(step)
        slots = [request.slot for request in running]
        assert len(set(slots)) == len(slots) <= NUM_SLOTS
        assert set(slots) <= set(range(1, NUM_SLOTS + 1))
        scheduler.update([2] * len(running))
    assert scheduler.num_tokens_left == 0
    assert all(request.finish_reason in ("length", "abort") for request in requests)
