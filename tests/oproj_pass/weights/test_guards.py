"""Guards of sharded weights make way for one each that a released weight passes; all others stay."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
from torch._dynamo.source import AttrSource, LocalSource
from torch._guards import Guard, TracingContext, tracing

from oproj_pass.weights.guards import accept_released

FIRST, SECOND, OTHER = (LocalSource(name) for name in ("first", "second", "other"))


def of_tensor(builder, guard):
    """Stands for what Dynamo makes of a guard."""


def node(source):
    return SimpleNamespace(_dynamo_source=source)


@pytest.fixture
def guards():
    """Three tensors' guards, and one on an attribute of each."""
    context = TracingContext(None)
    for source in (FIRST, SECOND, OTHER):
        context.guards_context.dynamo_guards.add(Guard(source, of_tensor))
        context.guards_context.dynamo_guards.add(Guard(AttrSource(source, "grad"), of_tensor))
    with tracing(context):
        yield context.guards_context


def test_leaves_one_guard_on_each_sharded_weight_and_the_others_as_they_are(guards):
    accept_released([node(FIRST), node(SECOND)])
    kept = [guard.originating_source for guard in guards.dynamo_guards if guard.create_fn is of_tensor]
    new = [guard.originating_source for guard in guards.dynamo_guards if guard.create_fn is not of_tensor]
    assert (kept, new) == ([OTHER, AttrSource(OTHER, "grad")], [FIRST, SECOND])
    assert not guards.dynamo_guards.get_guards_for_source(AttrSource(FIRST, "grad"))


class CountsWalks(defaultdict):
    walks = 0

    def __iter__(self):
        self.walks += 1
        return super().__iter__()


def test_walks_over_the_guards_once_for_all_weights(guards, monkeypatch):
    by_source = CountsWalks(list, guards.dynamo_guards.source_to_guards)
    monkeypatch.setattr(guards.dynamo_guards, "source_to_guards", by_source)
    accept_released([node(FIRST), node(SECOND), node(OTHER)])
    assert by_source.walks == 1


def test_finds_what_is_reached_through_a_weight_by_links_that_no_guard_is_on(guards):
    far = AttrSource(AttrSource(AttrSource(FIRST, "grad"), "grad"), "data")
    guards.dynamo_guards.add(Guard(far, of_tensor))
    accept_released([node(LocalSource("first"))])
    assert not guards.dynamo_guards.get_guards_for_source(far)


def test_does_nothing_outside_a_compilation_and_for_inputs_that_dynamo_does_not_know(guards):
    before = list(guards.dynamo_guards)
    accept_released([SimpleNamespace()])
    with tracing(None):
        accept_released([node(FIRST)])
    assert list(guards.dynamo_guards) == before
