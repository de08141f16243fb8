"""Spares a test process what it would do for no test."""

import gc

import torch._dynamo.guards as guards

_OBJECTS_BEFORE_COLLECTION = 50_000


def leave_guards_untimed():
    """Dynamo empties the processor's caches at each compilation, to time its guards for a log."""
    guards.profile_guard_manager = lambda *_: 0.0


def rest_the_collector():
    """Python would look for garbage among all that is imported, a tenth of what tracing costs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
