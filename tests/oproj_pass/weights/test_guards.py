"""Guards of sharded weights make way for one each that a released weight passes; all others stay."""

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


def test_walks_over_the_guards_once_for_all_weights(guards, monkeypatch):
    walks, copy = [], guards.copy_graphstate
    monkeypatch.setattr(guards, "copy_graphstate", lambda: walks.append(1) or copy())
    accept_released([node(FIRST), node(SECOND), node(OTHER)])
    assert len(walks) == 1


def test_does_nothing_outside_a_compilation_and_for_inputs_that_dynamo_does_not_know(guards):
    before = list(guards.dynamo_guards)
    accept_released([SimpleNamespace()])
    with tracing(None):
        accept_released([node(FIRST)])
    assert list(guards.dynamo_guards) == before
