"""What npugraph_ex captures is called, never captured around; a step that it does not replay is refused.

``FxGraph`` stands for npugraph_ex's record of one FX graph and follows its rules;
tests/ascend runs the real one.
"""

import sys
from types import SimpleNamespace

import pytest
import torch

from oproj_pass.errors import ConfigError, EagerStepError
from oproj_pass.runtime import DecodeRunner


class FxGraph:
    """Captures a graph for each (size, address); at the limit it destroys all and runs eager for good."""

    name = "graph_1"

    def __init__(self, limit=64, force_recapture=False, force_eager=False):
        self.config = {"capture_limit": str(limit)}
        self.force_recapture, self.force_eager = force_recapture, force_eager
        self.fallback_to_eager, self._graphs = False, {}

    @property
    def graph(self):
        return dict(self._graphs)

    def __call__(self, x, address=0):
        key = (len(x), address)
        if not (self.force_eager or self.fallback_to_eager):
            if key not in self._graphs and len(self._graphs) == int(self.config["capture_limit"]):
                self._graphs, self.fallback_to_eager = {}, True
            elif key not in self._graphs or self.force_recapture:
                self._graphs[key] = object()
        return 2 * x


class NeverCaptures:
    def capture(self, call):
        raise AssertionError("captured around npugraph_ex")


@pytest.fixture(autouse=True)
def npugraph_ex(monkeypatch):
    module = SimpleNamespace(AclGraph=FxGraph)
    monkeypatch.setitem(sys.modules, "npugraph_ex._acl_concrete_graph.acl_graph", module)


@pytest.fixture
def build(plan, peer):
    def build(fx_graph, *, call=None, graphs=None, **options):
        options = {"group": peer, **options}
        fn = call or (lambda x: fx_graph(x))
        return DecodeRunner(fn, plan, rows={"x": 0}, graphs=graphs or NeverCaptures(), **options)

    return build


@pytest.fixture
def captured(build):
    def captured(fx_graph, **options):
        runner = build(fx_graph, **options)
        runner.capture({"x": torch.zeros(1, 3)})
        return runner

    return captured


def test_captures_each_size_once_and_replays_it(captured, batch, plan):
    fx_graph = FxGraph()
    runner = captured(fx_graph)
    graphs = dict(fx_graph.graph)
    assert [size for size, _ in graphs] == list(reversed(plan.sizes))
    for num_tokens in (3, 16, 1):
        assert torch.equal(runner.step({"x": batch(num_tokens)}), 2 * batch(num_tokens))
    assert fx_graph.graph == graphs


def test_a_size_that_warm_up_captured_is_recognised(build, batch):
    fx_graph = FxGraph()
    runner = build(fx_graph)
    for num_tokens in (16, 8, 4, 1):
        runner.warm_up({"x": batch(num_tokens)})
    runner.capture({"x": batch(1)})
    assert len(fx_graph.graph) == 4


def test_leaves_its_observer_nowhere(captured):
    before = FxGraph.__call__
    captured(FxGraph())
    assert FxGraph.__call__ is before


def test_what_npugraph_ex_runs_eager_by_option_is_captured_by_the_runner(captured, batch):
    with pytest.raises(AssertionError, match="captured around"):
        captured(FxGraph(force_eager=True), group=None)


@pytest.mark.parametrize(("limit", "held"), [(3, 2), (1, 0)])
@pytest.mark.parametrize("alone", [True, False])
def test_refuses_a_plan_above_the_capture_limit(build, batch, limit, held, alone):
    fx_graph = FxGraph(limit)
    runner = build(fx_graph, **({"group": None} if alone else {}))
    with pytest.raises(ConfigError, match=f"captures 4 sizes, .* capture_limit = {limit} .* budget={limit}"):
        runner.capture({"x": batch(1)})
    assert len(fx_graph.graph) == held


def test_takes_a_plan_of_exactly_the_limit(captured):
    fx_graph = FxGraph(4)
    captured(fx_graph)
    assert len(fx_graph.graph) == 4


def test_graphs_of_warm_up_count(build, batch):
    runner = build(FxGraph(4))
    runner.warm_up({"x": batch(5)})
    with pytest.raises(ConfigError, match="warm-up runs"):
        runner.capture({"x": batch(1)})


def test_one_fx_graph_a_size_needs_no_room(captured, plan):
    by_size = {size: FxGraph(1) for size in plan.sizes}
    captured(None, call=lambda x: by_size[len(x)](x))
    assert [len(fx_graph.graph) for fx_graph in by_size.values()] == [1] * len(by_size)


def test_refuses_steps_once_others_used_up_the_limit(captured, batch, peer):
    fx_graph = FxGraph(5)
    runner = captured(fx_graph)
    fx_graph(batch(20))
    runner.step({"x": batch(3)})
    fx_graph(batch(21))
    assert fx_graph.fallback_to_eager
    with pytest.raises(
        EagerStepError, match=r"rank 0 cannot replay: .*capture_limit = 5 of graph_1.*restart"
    ):
        runner.step({"x": batch(3)})
    assert "eager for good" in peer.rows[-1].reason


def test_refuses_a_step_that_captures(captured, batch):
    fx_graph, address = FxGraph(), [0]
    runner = captured(fx_graph, call=lambda x: fx_graph(x, address[0]))
    address[0] = 1
    with pytest.raises(EagerStepError, match="captured graph_1 again"):
        runner.step({"x": batch(3)})


def test_refuses_a_step_that_falls_back(captured, batch):
    fx_graph, address = FxGraph(4), [0]
    runner = captured(fx_graph, call=lambda x: fx_graph(x, address[0]))
    address[0] = 1
    with pytest.raises(EagerStepError, match="capture_limit = 4"):
        runner.step({"x": batch(3)})


def test_refuses_to_capture_at_every_call(build, batch):
    runner = build(FxGraph(force_recapture=True))
    with pytest.raises(EagerStepError, match="force_recapture"):
        runner.capture({"x": batch(1)})


def test_alone_a_step_may_capture(captured, batch):
    fx_graph, address = FxGraph(), [0]
    runner = captured(fx_graph, call=lambda x: fx_graph(x, address[0]), group=None)
    address[0] = 1
    assert torch.equal(runner.step({"x": batch(3)}), 2 * batch(3))
