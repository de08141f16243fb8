"""Spares a test process what Dynamo does for no test."""

import torch._dynamo.guards as guards


def leave_guards_untimed():
    """Dynamo empties the processor's caches at each compilation, to time its guards for a log."""
    guards.profile_guard_manager = lambda *_: 0.0
