"""Callables that npugraph_ex compiled: which graphs it captured for them, and whether it still replays those.

npugraph_ex captures each size at its first call and replays it afterwards, so nothing may capture around it.
But it never refuses: a new address or size captures again, and at ``capture_limit`` it destroys all graphs of
that FX graph and runs it eager for good. Its own records tell; they are read here and nowhere changed.
"""

import sys
from collections.abc import Sequence
from typing import Any

from oproj_pass.errors import ConfigError, EagerStepError
from oproj_pass.profiling import profiled
from oproj_pass.runtime.device_graph import Call, CallableGraph, DeviceGraphs, Graph

FxGraph = Any  # npugraph_ex's AclGraph: what it captured for one FX graph, a device graph for each size

_ACL_GRAPH = "npugraph_ex._acl_concrete_graph.acl_graph"  # its generated code imports AclGraph by this path


class NpugraphExGraphs:
    """Device graphs of a callable, some of which npugraph_ex captures by itself.

    Args:
        otherwise: captures the calls in which npugraph_ex captures nothing.
        num_sizes: calls that will be captured, one for each planned size.
        replay_only: whether a replay must raise instead of capturing again.
    """

    def __init__(self, otherwise: DeviceGraphs, num_sizes: int, *, replay_only: bool) -> None:
        self._otherwise, self._num_sizes, self._replay_only = otherwise, num_sizes, replay_only
        self._num_left = num_sizes
        self._fx_graphs: dict[FxGraph, None] = {}

    def capture(self, call: Call) -> Graph:
        """``call`` as a graph to replay, captured by npugraph_ex if it does so. Runs it.

        Raises ``ConfigError`` if an FX graph has no room for the sizes to come, and ``EagerStepError`` if
        npugraph_ex captures at every call.
        """
        self._num_left -= 1
        fx_graphs = _fx_graphs_of(call)
        if not fx_graphs:
            return self._otherwise.capture(call)
        for fx_graph in fx_graphs:
            _require_room(fx_graph, self._num_sizes, self._num_left)
        self._fx_graphs.update(dict.fromkeys(fx_graphs))
        graph = ReplayingCall(call, fx_graphs)
        graph.replay()
        return graph if self._replay_only else CallableGraph(call)

    def cannot_replay(self) -> str | None:
        """What is said of the first FX graph that runs eager by now."""
        for fx_graph in self._fx_graphs:
            if fx_graph.fallback_to_eager:
                return _gave_up(fx_graph)
        return None


class ReplayingCall:
    """A captured size of a callable that npugraph_ex replays: called again, and seen to capture nothing."""

    def __init__(self, call: Call, fx_graphs: Sequence[FxGraph]) -> None:
        self._call, self._fx_graphs = call, fx_graphs

    @profiled("oproj_pass::replay")
    def replay(self) -> Any:
        """Run the call; raises ``EagerStepError`` if it captured a graph or ran eager."""
        before = [fx_graph.graph for fx_graph in self._fx_graphs]
        output = self._call()
        for fx_graph, captured in zip(self._fx_graphs, before, strict=True):
            if fx_graph.fallback_to_eager:
                raise EagerStepError(_gave_up(fx_graph))
            if fx_graph.graph != captured:
                raise EagerStepError(
                    f"npugraph_ex captured {fx_graph.name} again: a tensor that it reads by address was "
                    "replaced (a cache, one marked static), or force_recapture is on. Write values in place, "
                    "and capture again with a new runner"
                )
        return output


def _fx_graphs_of(call: Call) -> tuple[FxGraph, ...]:
    """Run ``call``; returns the FX graphs in it that npugraph_ex captured, none if it is not even loaded."""
    module = sys.modules.get(_ACL_GRAPH)
    if module is None:
        return ()
    run, seen = module.AclGraph.__call__, dict[FxGraph, None]()

    def note_and_run(fx_graph: FxGraph, *args: Any, **kwargs: Any) -> Any:
        seen[fx_graph] = None
        return run(fx_graph, *args, **kwargs)

    module.AclGraph.__call__ = note_and_run
    try:
        call()
    finally:
        module.AclGraph.__call__ = run
    return tuple(fx_graph for fx_graph in seen if fx_graph.graph or fx_graph.fallback_to_eager)


def _require_room(fx_graph: FxGraph, num_sizes: int, num_left: int) -> None:
    held, limit = len(fx_graph.graph), _limit(fx_graph)
    serves_several_sizes = held > 1
    if fx_graph.fallback_to_eager or (serves_several_sizes and held + num_left > limit):
        raise ConfigError(
            f"the plan captures {num_sizes} sizes, npugraph_ex keeps at most capture_limit = {limit} graphs "
            f"of one FX graph ({fx_graph.name}), warm-up runs' among them. At one more it destroys them all "
            f"and runs eager for good. Plan with budget={limit}, or raise the limit: "
            "options={'inner_options': {'capture_limit': ...}}"
        )


def _gave_up(fx_graph: FxGraph) -> str:
    return (
        f"npugraph_ex reached capture_limit = {_limit(fx_graph)} of {fx_graph.name}, destroyed its captured "
        "graphs and runs it eager for good. Calls with sizes outside the plan take its room: compile the "
        "model once more for them, or raise inner_options={'capture_limit': ...}; then restart"
    )


def _limit(fx_graph: FxGraph) -> int:
    return int(fx_graph.config["capture_limit"])
