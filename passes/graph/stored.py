"""Which graph inputs hold a model's stored weights.

Reads Dynamo's record of where each input came from; never guesses from names or shapes alone. Ahead-of-time
compilation (vLLM's) has let go of the real tensors by then, and keeps the sources.
"""

import re
from collections.abc import Mapping, Set

from torch import Tensor, nn
from torch.fx import GraphModule, Node

from oproj_pass.passes.graph.effects import written_inputs
from oproj_pass.passes.graph.provenance import normalise_path, placeholders, real_value, value_of

_OF_A_MODULE = re.compile(r"\._(?P<kind>parameters|buffers)\['[^']*'\]$")


def parameter_paths(gm: GraphModule, parameters: Mapping[str, str] | None = None) -> dict[Node, str] | None:
    """The graph inputs that are stored weights, each with its dotted path in the model.

    Weights are parameters, and buffers of a module that have at most two dimensions and that the graph does
    not write (so no cache). ``parameters`` maps placeholder names to paths, as an exported program's
    ``graph_signature.inputs_to_parameters`` does; without it, Dynamo's own record is read. None where the
    graph keeps no record at all (an ATen graph inside a compiler): there any input may be a weight.
    """
    inputs = placeholders(gm)
    if parameters is not None:
        return {node: parameters[node.name] for node in inputs if node.name in parameters}
    sources = {node: _source(node) for node in inputs}
    if not any(sources.values()):
        return None
    written = written_inputs(gm)
    return {
        node: normalise_path(source) for node, source in sources.items() if _is_weight(node, source, written)
    }


def _is_weight(node: Node, source: str, written: Set[Node]) -> bool:
    found = _OF_A_MODULE.search(source)
    if isinstance(real_value(node), nn.Parameter) or (found and found["kind"] == "parameters"):
        return True
    is_small = isinstance(value := value_of(node), Tensor) and value.dim() <= 2
    return found is not None and is_small and node not in written


def is_stored(node: Node) -> bool:
    """Whether a Dynamo graph's input is a parameter or a buffer of a module."""
    if isinstance(real_value(node), nn.Parameter):
        return True
    return isinstance(value_of(node), Tensor) and _OF_A_MODULE.search(_source(node)) is not None


def _source(node: Node) -> str:
    """Where Dynamo says that an input came from; ``""`` where nothing is on record."""
    source = getattr(node, "_dynamo_source", None) or getattr(node.meta.get("grapharg"), "source", None)
    if source is None:
        return ""
    return str(source.name if isinstance(source.name, str) else source.name())
