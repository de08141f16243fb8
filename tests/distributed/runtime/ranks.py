"""What the tests of this folder run on every rank: a cheap exchanging model, and runs that report errors."""

import os
import time

import torch
import torch.distributed as dist

from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.errors import OProjError
from oproj_pass.groups import shard_group
from oproj_pass.runtime import DecodeRunner

TIMEOUT = 4.0
PATIENCE = 4 * TIMEOUT  # three waits and a loaded machine
PLAN = plan_capture(StepBound(8, 64), sizes=[4, 8])


def die():
    """End this process as a crash does, without a word to its peers."""
    os._exit(1)


def whole_group():
    return shard_group(dist.get_world_size(), None, 30)


class Exchanging:
    """[rows, 3] in, the doubled rows out, after a round trip that hangs or corrupts if rows are unequal.

    ``fail_at``: call number -> what to do between the two collectives of that call.
    """

    def __init__(self):
        self.group, self.fail_at, self.calls = whole_group(), {}, []

    def __call__(self, x):
        self.calls.append((len(x), x.data_ptr()))
        sent = x.repeat(self.group.size, 1)
        received, returned = torch.empty_like(sent), torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group.device)
        self.fail_at.get(len(self.calls), lambda: None)()
        dist.all_to_all_single(returned, received, group=self.group.device)
        return 2 * returned[: len(x)]


def serving(fn=None, *, plan=PLAN, rows=None, example=None, **options):
    """A captured runner over all ranks."""
    fn = Exchanging() if fn is None else fn
    options = {"timeout": TIMEOUT, "capture_timeout": 30.0, "group": whole_group(), **options}
    runner = DecodeRunner(fn, plan, rows=rows or {"x": 0}, **options)
    runner.capture(example or {"x": torch.zeros(1, 3)})
    if isinstance(fn, Exchanging):
        fn.calls.clear()
    return runner


def batch(num_tokens):
    """Values that differ by element and by rank."""
    return torch.randn(num_tokens, 3)


def checked_step(runner, num_tokens):
    """One step whose result is compared with the right one."""
    x = batch(num_tokens)
    torch.testing.assert_close(runner.step({"x": x}), 2 * x)


def caught(action):
    """The type and message of the project error that ``action`` raises, and the seconds until then."""
    start = time.monotonic()
    try:
        action()
    except OProjError as error:
        return type(error).__name__, str(error), time.monotonic() - start
    return "none", "", time.monotonic() - start
