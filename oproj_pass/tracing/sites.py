"""Finds what becomes of each site, graph by graph and run by run.

With graph breaks Dynamo runs layer 0's graph again with layer 1's weights, so a graph says which sites there
are and each run of it whose they are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule

from oproj_pass.backend.finding import find_sites
from oproj_pass.config import OProjConfig
from oproj_pass.passes import NearMiss, Site
from oproj_pass.passes.graph.provenance import placeholders, storage_of
from oproj_pass.passes.graph.stored import is_stored, parameter_paths
from oproj_pass.weights.memory_report import stored_tensors


@dataclass
class FoundSite:
    """A site that runs: the ``site``, whose paths are the model's own, and the number of its graph.

    ``storages``: identities of its stored tensors' storages, the weight's first; ``calls``: times a step runs
    it.
    """

    site: Site
    graph: int
    storages: tuple[int, ...]
    calls: int = 1

    @property
    def storage(self) -> int:
        """Identity of the weight's storage."""
        return self.storages[0]


class SiteSearch:
    """A Dynamo backend that searches each graph of ``model`` and runs it as it is."""

    def __init__(self, model: nn.Module, config: OProjConfig) -> None:
        self.config = config
        self.num_graphs = 0
        named = reversed([*stored_tensors(model)])  # a shared weight goes by its first name, as in Dynamo
        self._names = {id(weight): name for name, weight in named}
        self._found: dict[tuple[str, str], FoundSite] = {}
        self._misses: dict[NearMiss, None] = {}
        self._readers: dict[int, str] = {}  # storage -> the graph input that reads it in full

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The graph as it is, which notes at each run what it finds in it."""
        self.num_graphs += 1
        graph, inputs = self.num_graphs, placeholders(gm)
        sites, misses = find_sites(gm, dict(zip(inputs, example_inputs, strict=True)), self.config)
        taken = {on.node for site in sites for on in site.stored}
        read = [is_stored(node) and node not in taken for node in inputs]
        paths = parameter_paths(gm) or {}
        here = [paths.get(node) for node in inputs]

        def run(*args: Any) -> Any:
            values = dict(zip(inputs, args, strict=True))
            names = [self._names.get(id(value)) for value in args]
            for site in sites:
                named = self._in_the_model(site, values, _full_path(site.path, here, names))
                self._add(named, graph, [values[on.node] for on in site.stored])
            self._misses.update((replace(m, path=_full_path(m.path, here, names)), None) for m in misses)
            for is_read, (node, value), name in zip(read, values.items(), names, strict=True):
                if is_read:
                    self._readers[_storage(value)] = name or node.name
            return gm.forward(*args)

        return run

    def _in_the_model(self, site: Site, values: dict[Any, Any], path: str) -> Site:
        """The site as this run has it: one graph serves several layers."""
        names = {
            node: self._names.get(id(value), site.names.get(node, node.name))
            for node, value in values.items()
        }
        return replace(site, path=path, names=names)  # type: ignore[type-var]

    def _add(self, site: Site, graph: int, weights: Sequence[Tensor]) -> None:
        if (known := self._found.get((site.role, site.path))) is not None:
            known.calls += 1
        else:
            storages = tuple(map(_storage, weights))
            self._found[site.role, site.path] = FoundSite(site, graph, storages)

    @property
    def sites(self) -> list[FoundSite]:
        """What sharding takes; a weight that any graph reads in full is no site's."""
        return [found for found in self._found.values() if self._reader(found) is None]

    def _reader(self, found: FoundSite) -> str | None:
        """The graph input that reads one of its tensors in full."""
        return next((self._readers[key] for key in found.storages if key in self._readers), None)

    @property
    def near_misses(self) -> Iterator[NearMiss]:
        """What is left alone, each once."""
        yield from self._misses
        for found in self._found.values():
            if (reader := self._reader(found)) is not None:
                reason = f"has a weight that another graph reads in full (`{reader}`)"
                yield NearMiss(found.site.path, reason, found.site.nbytes, role=found.site.role)


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
