"""Rewrites a model's graph the way the backend would, with no process group, to look at it.

The group's name stands for a group that does not exist: shapes follow from its size alone, and the rewritten
graph is never run.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.fx import GraphModule

from oproj_pass.errors import ConfigError
from oproj_pass.passes import Exchange, ShardOProj
from oproj_pass.passes.history import PassHistory
from oproj_pass.tracing.graphs import capture_graphs, copy_to_run

_NO_GROUP = "oproj"


def rewrite_graph(model: nn.Module, *args: Any, size: int, **kwargs: Any) -> PassHistory:
    """The history of sharding the one graph of ``model(*args, **kwargs)`` over ``size`` ranks.

    The model stays as it is, and may be on ``meta``. Raises ``ConfigError`` if Dynamo makes several graphs of
    it, or none, or if ``size`` does not divide a K, and whatever the model raises.
    """
    histories = []

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        original = copy.deepcopy(gm)
        history = PassHistory()
        history.run(gm, example_inputs, [ShardOProj(Exchange(size, _NO_GROUP))])
        histories.append(history)
        return original.forward

    breaks = capture_graphs(*copy_to_run(model, args, kwargs), backend)
    if len(histories) != 1:
        why = "; ".join(f"{break_.reason} at {break_.source}" for break_ in breaks) or "no break was recorded"
        raise ConfigError(
            f"{type(model).__name__} makes {len(histories)} graphs, required: one, to compare it before and "
            f"after. {why}."
        )
    return histories[0]
