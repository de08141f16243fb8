"""Finds what becomes of each attention's projection, graph by graph and run by run.

With graph breaks Dynamo runs layer 0's graph again with layer 1's weights, so a graph says which projections
there are and each run of it whose they are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule

from oproj_pass.backend.finding import find_sites
from oproj_pass.config import OProjConfig
from oproj_pass.passes import NearMiss, Projection
from oproj_pass.passes.graph.provenance import placeholders, storage_of
from oproj_pass.passes.graph.stored import is_stored, parameter_paths
from oproj_pass.weights.memory_report import stored_tensors


@dataclass
class FoundProjection:
    """A projection that runs: its ``site``, whose paths are the model's own, and the number of its graph.

    ``storage``: identity of its weight's storage; ``calls``: times a step runs it.
    """

    site: Projection
    graph: int
    storage: int
    calls: int = 1


class ProjectionSearch:
    """A Dynamo backend that searches each graph of ``model`` and runs it as it is."""

    def __init__(self, model: nn.Module, config: OProjConfig) -> None:
        self.config = config
        self.num_graphs = 0
        named = reversed([*stored_tensors(model)])  # a shared weight goes by its first name, as in Dynamo
        self._names = {id(weight): name for name, weight in named}
        self._found: dict[str, FoundProjection] = {}
        self._misses: dict[NearMiss, None] = {}
        self._readers: dict[int, str] = {}  # storage -> the graph input that reads it in full

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The graph as it is, which notes at each run what it finds in it."""
        self.num_graphs += 1
        graph, inputs = self.num_graphs, placeholders(gm)
        sites, misses = find_sites(gm, dict(zip(inputs, example_inputs, strict=True)), self.config)
        taken = {on.node for site in sites for on in site.gemm.k.tensors}
        read = [is_stored(node) and node not in taken for node in inputs]
        paths = parameter_paths(gm) or {}
        here = [paths.get(node) for node in inputs]

        def run(*args: Any) -> Any:
            values = dict(zip(inputs, args, strict=True))
            names = [self._names.get(id(value)) for value in args]
            for site in sites:
                named = self._in_the_model(site, values, _full_path(site.path, here, names))
                self._add(named, graph, values[site.weight])
            self._misses.update((replace(m, path=_full_path(m.path, here, names)), None) for m in misses)
            for is_read, (node, value), name in zip(read, values.items(), names, strict=True):
                if is_read:
                    self._readers[_storage(value)] = name or node.name
            return gm.forward(*args)

        return run

    def _in_the_model(self, site: Projection, values: dict[Any, Any], path: str) -> Projection:
        """The site as this run has it: one graph serves several layers."""
        names = {node: self._names.get(id(value), site.name_of(node)) for node, value in values.items()}
        return replace(site, path=path, names=names)

    def _add(self, site: Projection, graph: int, weight: Tensor) -> None:
        if (known := self._found.get(site.path)) is not None:
            known.calls += 1
        else:
            self._found[site.path] = FoundProjection(site, graph, _storage(weight))

    @property
    def projections(self) -> list[FoundProjection]:
        """What sharding takes; a weight that any graph reads in full is no projection's."""
        return [found for found in self._found.values() if found.storage not in self._readers]

    @property
    def near_misses(self) -> Iterator[NearMiss]:
        """What is left alone, each once."""
        yield from self._misses
        for path, found in self._found.items():
            if found.storage in self._readers:
                reason = f"has a weight that another graph reads in full (`{self._readers[found.storage]}`)"
                yield NearMiss(path, reason, found.site.nbytes)


def _storage(tensor: Tensor) -> int:
    return int(storage_of(tensor)._cdata)


def _full_path(path: str, here: Sequence[str | None], names: Sequence[str | None]) -> str:
    """The path in the model of the module that a graph calls ``path``.

    A graph names modules from the frame that it was captured from, and one graph serves several layers: the
    names of the parameters below the module, in the graph (``here``) and in the model, tell.
    """
    for parameter, name in zip(here, names, strict=True):
        if parameter and name and parameter.startswith(f"{path}."):
            tail = parameter.removeprefix(path)
            if name.endswith(tail):
                return name.removesuffix(tail)
    return path
