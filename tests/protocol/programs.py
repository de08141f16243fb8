"""What the ranks of a search run: a runner's life, two runners by turns, calls of sharded graphs.

Each choice is the rank's own: which step it brings, whether its model fails. A search takes every one of them
as often as it is told to allow faults.
"""

from functools import partial

import torch
from torch._dynamo.exc import RestartAnalysis

from oproj_pass.agreement.calls import CallAgreement
from oproj_pass.agreement.graphs import GraphText, agree_on_graph, compiling_together
from oproj_pass.agreement.known_errors import is_known_to_group
from oproj_pass.agreement.sharded_calls import announce
from oproj_pass.agreement.step_group import ControlGroup
from oproj_pass.capture import GraphMode, StepBound, plan_capture
from oproj_pass.errors import OProjError
from oproj_pass.groups import ShardGroups
from oproj_pass.passes.graph_fingerprint import Fingerprint
from oproj_pass.runtime import CallableGraphs, ContextParallelStep, DecodeRunner, PrefillRunner
from oproj_pass.weights.placement import Placement
from oproj_pass.weights.released import adopt
from oproj_pass.weights.stand_in import serving_reads
from tests.protocol.tape import FAILED, RAW, REFUSED, STOPPED

TIMEOUT, CAPTURE_TIMEOUT = 4.0, 600.0
PROMISED = 3 * TIMEOUT
PLAN = plan_capture(StepBound(4, 64), sizes=[4])
STEPS = {
    "busy": lambda runner: runner.step({"x": rows(3)}),
    "unfit": lambda runner: runner.step({"x": rows(2).double()}),
    "oversize": lambda runner: runner.step({"x": rows(5)}),
    "idle": lambda runner: runner.idle_step({}),
    "eager": lambda runner: runner.step({"x": rows(2)}, mode=GraphMode.NONE),
}


PREFILLS = {
    "busy": lambda runner: runner.step({"x": rows(7)}, prompt(7)),
    "other requests": lambda runner: runner.step({"x": rows(8)}, prompt(8)),
    "unfit": lambda runner: runner.step({"x": rows(7)}, prompt(8)),
    "idle": lambda runner: runner.idle_step({}),
}


def prompt(length):
    """As many rows on each of two ranks for 7 as for 8."""
    return ContextParallelStep(2, [length], [length], [0])


def rows(count):
    return torch.zeros(count, 1)


class Exchanging:
    """A model of one collective a call in each group of ``sizes``, by default of all ranks.

    ``moments``: it may fail before, between or after them.
    """

    def __init__(self, rank, moments=("runs", "fails before", "fails after"), sizes=()):
        self._rank, self._moments = rank, moments
        self._groups = [rank.group_of(size) for size in sizes or (rank.group.size,)]

    def __call__(self, x):
        announce(self._groups)
        moment = self._rank.choose(*self._moments)
        if moment == "fails before":
            raise RuntimeError("out of memory")
        for place, group in enumerate(self._groups):
            if moment == "fails between" and place:
                raise RuntimeError("another kernel")
            group.device.collective(len(x))
        if moment == "fails after":
            raise RuntimeError("device assert")
        return 2 * x


class Gathering(Exchanging):
    """A model of two sharded weights, which a step gathers where its rows are exchanged by no graph."""

    def __init__(self, rank):
        super().__init__(rank, ("runs", "fails before"))
        cut = Placement.split(0, rank.group)
        self._weights = [
            adopt(torch.zeros(2, 1), cut, name, (2 * rank.group.size, 1)) for name in ("o_proj", "down_proj")
        ]

    def __call__(self, x):
        if serving_reads() is None:
            return super().__call__(x)
        for weight in self._weights:
            weight.sum()
            if self._rank.choose("runs", "fails in between") == "fails in between":
                raise RuntimeError("out of memory")
        return 2 * x


class Sharded:
    """A model whose graph the backend shards: compiled with its peers, and met before each call.

    ``sizes``: the groups in which the graph exchanges, in this order; another graph has another order.
    """

    def __init__(self, rank, moments=("runs", "fails before"), sizes=()):
        self._rank, self._calls = rank, None
        self._moments, self._sizes = moments, sizes or (rank.group.size,)

    def __call__(self, x):
        self._calls = self._calls or self._compile()
        with self._calls.preparing([x]):
            if self._rank.choose("cuts its weights", "cannot cut") == "cannot cut":
                raise RuntimeError("a weight on another device")
        return self._calls.run(self._run, [x])

    def _compile(self):
        for _ in range(2):
            try:
                return self._compile_once()
            except RestartAnalysis:
                continue
        raise RuntimeError("restarts for ever")

    def _compile_once(self):
        outcome = self._rank.choose("compiles", "another graph", "fails to compile", "restarts")
        sizes = self._sizes
        if outcome == "another graph":
            sizes = sizes[::-1] if len(sizes) > 1 else sizes * 2
        text = GraphText(Fingerprint(tuple(f"all_to_all over {size}" for size in sizes)), "at each call")
        agree_on_graph(self._rank.group, text, CAPTURE_TIMEOUT)
        with compiling_together(self._rank.group, CAPTURE_TIMEOUT):
            if outcome == "fails to compile":
                raise RuntimeError("disk full")
            if outcome == "restarts":
                raise RestartAnalysis
        self._run = Exchanging(self._rank, self._moments, sizes)
        groups = ShardGroups({size: self._rank.group_of(size) for size in sizes}, self._rank.group)
        return CallAgreement(groups, "o_proj", lambda given: {"o_proj": len(given[0])}, text, TIMEOUT)


def runner_on(rank, model, name="model", size=None, wide_steps=None):
    return DecodeRunner(
        model,
        PLAN,
        rows={"x": 0},
        group=ControlGroup(rank.group_of(size or rank.group.size)),
        graphs=CallableGraphs(),
        timeout=TIMEOUT,
        capture_timeout=CAPTURE_TIMEOUT,
        wide_steps=wide_steps,
        name=name,
    )


def of_runner(runner, error):
    """What an error of one of its calls means: nothing raw may come out of a runner of several ranks."""
    if not isinstance(error, OProjError):
        return RAW
    return STOPPED if runner._peers._stopped else REFUSED


def of_call(error):
    """The same for a compiled graph alone, whose model's own errors come out as they are."""
    return REFUSED if is_known_to_group(error) else FAILED


def serve(rank, *, warm_up, steps, kinds=tuple(STEPS), model=Exchanging, wide_steps=None):
    """One runner: warm-up, capture, steps, each tried whatever became of the one before."""
    runner = runner_on(rank, model(rank), wide_steps=wide_steps)
    attempt = partial(rank.attempt, judge=partial(of_runner, runner))
    if warm_up:
        attempt("warm-up", lambda: runner.warm_up({"x": rows(2)}))
    attempt("capture", lambda: runner.capture({"x": rows(1)}))
    rank.bound = PROMISED
    for step in range(steps):
        kind = rank.choose(*kinds, harmful=False)
        attempt(f"step {step}", partial(STEPS[kind], runner))


def prefill(rank, *, steps):
    """A runner of prefills that the ranks share; each brings a step, whatever the others bring."""
    model = Exchanging(rank, ("runs", "fails before"))
    runner = PrefillRunner(
        lambda x, context: model(x),
        sizes=[4],
        rows={"x": 0},
        output_rows=None,  # restoring would gather on real wires
        context=rank.group,
        group=ControlGroup(rank.group),
        timeout=TIMEOUT,
        capture_timeout=CAPTURE_TIMEOUT,
    )
    attempt = partial(rank.attempt, judge=partial(of_runner, runner))
    attempt("warm-up", lambda: runner.warm_up({"x": rows(1)}))
    rank.bound = PROMISED
    for step in range(steps):
        kind = rank.choose(*PREFILLS, harmful=False)
        attempt(f"step {step}", partial(PREFILLS[kind], runner))


def draft(
    rank,
    *,
    turns=("target", "draft", "target"),
    parts=("takes part", "leaves out"),
    failing=("target", "draft"),
    sizes=None,
):
    """A target's and a draft's runner by turns; a rank may leave one step out.

    ``failing``: whose models may fail. ``sizes``: the groups that each exchanges in; the largest agrees.
    """
    sizes = sizes or dict.fromkeys(("target", "draft"), (rank.group.size,))
    runners = {}
    for name, used in sizes.items():
        moments = ("runs", "fails before") if name in failing else ("runs",)
        runners[name] = runner_on(rank, Exchanging(rank, moments, used), name, max(used))
    for name, runner in runners.items():
        rank.attempt(
            f"capture of {name}", partial(runner.capture, {"x": rows(1)}), partial(of_runner, runner)
        )
    rank.bound = PROMISED
    for number, name in enumerate(turns):
        if rank.choose(*parts) == "leaves out":
            rank.skip()
        else:
            step, judge = partial(STEPS["busy"], runners[name]), partial(of_runner, runners[name])
            rank.attempt(f"step {number} of {name}", step, judge)


def call(rank, *, calls=2, model=Sharded):
    """A compiled graph without a runner, called with rows that a rank may bring in another number."""
    model = model(rank)
    for number in range(calls):
        count = rank.choose("3 rows", "5 rows", harmful=False)
        rank.attempt(f"call {number}", partial(model, rows(int(count[0]))), of_call)
