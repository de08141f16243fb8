"""Decides which GEMMs are attention output projections, and gives every other attention its reason.

Detection is by dataflow plus module path, never by name: see ``attention``. A site is a promise that the
rewrite is exact, so anything unusual about the weight (another reader, a part of a larger storage, a tensor
subclass) makes a near miss instead.
"""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.gemm.axes import Axis, StoredAxis
from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph.provenance import nbytes, parent_path, value_of
from oproj_pass.passes.graph.stored import parameter_paths
from oproj_pass.passes.graph.subgraphs import enclosure_refusal
from oproj_pass.passes.sites.attention import AttentionTrace
from oproj_pass.passes.sites.attention_results import Attention, Reached
from oproj_pass.passes.sites.globs import policy_refusal
from oproj_pass.passes.sites.refusals import other_reader, shared_storage, stray_reader, weight_refusal

logger = logging.getLogger(__name__)

_NO_ATTENTION = "follows a token mixer without softmax attention (convolution, scan or linear attention)"


@dataclass(frozen=True)
class Projection:
    """One GEMM that can be shared among ranks: ``y [.., H] = x [.., K] @ weight (+ bias)``.

    ``names``: the paths in the model of the stored tensors behind its placeholders. ``role``: what the weight
    is here for; this file finds attention output projections.
    """

    path: str
    gemm: Gemm
    names: Mapping[Node, str]
    role: str = "oproj"

    @property
    def weight(self) -> Node:
        """The placeholder of the stored weight."""
        return self.gemm.weight.node

    @property
    def weight_path(self) -> str:
        """The stored weight's path in the model."""
        return self.name_of(self.weight)

    @property
    def scheme(self) -> str:
        """How the weight is stored and multiplied."""
        return self.gemm.scheme

    @property
    def dtype(self) -> torch.dtype:
        """The stored weight's type."""
        return value_of(self.weight).dtype  # type: ignore[no-any-return]

    @property
    def in_features(self) -> int:
        """K."""
        return self.gemm.k.extent

    @property
    def out_features(self) -> int:
        """H."""
        return value_of(self.gemm.node).shape[-1]  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Bytes of the full weight, and of scales that lie along K."""
        return self.gemm.k.nbytes

    def along(self, axis: Axis) -> StoredAxis:
        """What an axis lies on, by the tensors' paths in the model; ``CannotFollow`` if that is not known."""
        return self._named(self.gemm.along(axis))

    def bias_along_output(self) -> StoredAxis | None:
        """H on the bias, if it is stored and nothing but this GEMM reads it; else None."""
        found = self.gemm.bias_along_output()
        if found is None or not all(self._is_stored(tensor.node) for tensor in found.tensors):
            return None
        readers = {self.gemm.node, *found.constants}
        shared = any(stray_reader(tensor.node, readers, found.constants) for tensor in found.tensors)
        return None if shared else self._named(found)

    def _is_stored(self, node: Node) -> bool:
        """Whether a placeholder is a stored tensor, as far as the graph names those."""
        return node in self.names if self.names else node.op == "placeholder"

    def _named(self, axis: StoredAxis) -> StoredAxis:
        return replace(axis, tensors=tuple(replace(t, path=self.name_of(t.node)) for t in axis.tensors))

    def name_of(self, tensor: Node) -> str:
        """A stored tensor's path in the model, its placeholder's name where it has none."""
        return self.names.get(tensor, tensor.name)


def find_projections(
    gm: GraphModule,
    *,
    parameters: Mapping[str, str] | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    attention_ops: frozenset[Any] = frozenset(),
) -> tuple[list[Projection], list[NearMiss]]:
    """The attention output projections of a Dynamo or ATen graph, and every near miss with its reason.

    ``parameters``: placeholder name to parameter path, for graphs without Dynamo's record (see
    ``parameter_paths``). ``include``/``exclude``: module-path globs; ``attention_ops``: further operator
    packets that count as attention. Both lists are in graph order; nothing is changed.
    """
    paths = parameter_paths(gm, parameters)
    trace = AttentionTrace(gm, paths, attention_ops)
    outputs = _without_hidden_layers(trace)
    judged = [_judge(candidate, paths, include, exclude) for candidate in outputs]
    sites = [found for found in judged if isinstance(found, Projection)]
    misses = [found for found in judged if isinstance(found, NearMiss)]
    sites, shared = _split_by_readers(sites, paths)
    enclosed = dict.fromkeys(_enclosed(trace, include, exclude))
    return sites, [*misses, *shared, *_unserved(trace, outputs), *enclosed]


def _without_hidden_layers(trace: AttentionTrace) -> list[Reached]:
    """The GEMMs that end an attention's module.

    One that feeds another GEMM of the module is a gate, an adapter or an MLP's first layer, unless it is all
    that its attention reaches there: then the module projects in two steps, and the first is taken.
    """
    starts = {attention.node for attention in trace.attentions}
    ending = [candidate for candidate in trace.reached if candidate.feeds is None]
    served = {source for candidate in ending for source in candidate.sources}

    def is_first_of_two(candidate: Reached) -> bool:
        own = all((source.path or "") == parent_path(candidate.path) for source in candidate.sources)
        return own and candidate.feeds not in starts and served.isdisjoint(candidate.sources)

    return [candidate for candidate in trace.reached if candidate.feeds is None or is_first_of_two(candidate)]


def _judge(
    candidate: Reached, paths: Mapping[Node, str] | None, include: Sequence[str], exclude: Sequence[str]
) -> Projection | NearMiss:
    nbytes = candidate.gemm.weight.nbytes
    try:
        reason = _refusal(candidate, include, exclude)
        if reason is None:
            return Projection(candidate.path, candidate.gemm, paths or {})
        return NearMiss(candidate.path, reason, nbytes)
    except Exception as error:  # what no rule foresaw costs the site, never the compile
        call = candidate.gemm.node.format_node()
        logger.warning("%s: the search cannot judge `%s`", candidate.path, call, exc_info=True)
        unforeseen = f"has a call that the search cannot read ({type(error).__name__}: {error})"
        return NearMiss(candidate.path, unforeseen, nbytes)


def _refusal(candidate: Reached, include: Sequence[str], exclude: Sequence[str]) -> str | None:
    if not candidate.is_attention:
        return next((source.refusal for source in candidate.sources if source.refusal), _NO_ATTENTION)
    return policy_refusal(candidate.path, include, exclude) or weight_refusal(candidate.gemm)


def _split_by_readers(
    sites: list[Projection], paths: Mapping[Node, str] | None
) -> tuple[list[Projection], list[NearMiss]]:
    """Keep the sites whose tensors nothing else reads, no dropped site either; a weight at several is one."""
    kept, misses = sites, list[NearMiss]()
    while dropped := _read_elsewhere(kept, paths):
        kept = [site for site in kept if site.gemm.node not in dropped]
        misses += [
            NearMiss(site.path, f"has a weight that is also read by {dropped[site.gemm.node]}", site.nbytes)
            for site in sites
            if site.gemm.node in dropped
        ]
    return kept, misses


def _read_elsewhere(sites: Sequence[Projection], paths: Mapping[Node, str] | None) -> dict[Node, str]:
    """Per GEMM with a stored tensor that anything but these sites reads, that reader."""
    users: dict[Node, list[Gemm]] = defaultdict(list)
    for site in sites:
        for tensor in site.gemm.k.tensors:
            users[tensor.node].append(site.gemm)
    aliases = shared_storage(users, paths)
    strangers = {node: other_reader(node, gemms) or aliases.get(node) for node, gemms in users.items()}
    return {gemm.node: stranger for node, stranger in strangers.items() if stranger for gemm in users[node]}


def _unserved(trace: AttentionTrace, outputs: list[Reached]) -> list[NearMiss]:
    served = {source for candidate in outputs for source in candidate.sources}
    hidden = {source: candidate for candidate in trace.reached for source in candidate.sources}
    lost = [attention for attention in trace.attentions if attention.softmax and attention not in served]
    return [_lost(attention, hidden.get(attention)) for attention in lost]


def _lost(attention: Attention, hidden: Reached | None) -> NearMiss:
    path = attention.path or attention.node.name
    if hidden is not None and hidden.feeds is not None:
        gemm = hidden.path or hidden.gemm.node.name
        return NearMiss(path, f"has a result that only reaches `{gemm}`, which feeds `{hidden.feeds.name}`")
    if not attention.ends:
        return NearMiss(path, "has a result that is not used")
    end = attention.ends[0]
    left = end.node.op == "output"
    where = "" if left else f" at `{end.node.name}`"
    return NearMiss(
        path,
        f"has a result that {end.reason}{where}",
        nbytes(end.weight) if end.weight else 0,
        left_by_graph_break=left,
    )


def _enclosed(trace: AttentionTrace, include: Sequence[str], exclude: Sequence[str]) -> Iterator[NearMiss]:
    """The attentions of graphs inside the graph, where nothing is rewritten, each at its projection."""
    for body, inner in trace.inner:
        outputs = [candidate for candidate in _without_hidden_layers(inner) if candidate.is_attention]
        found = [(_path_inside(candidate, inner), candidate.gemm.weight.nbytes) for candidate in outputs]
        stay = [miss for miss in _unserved(inner, outputs) if not miss.left_by_graph_break]
        for path, size in [*found, *((miss.path, miss.nbytes) for miss in stay)]:
            yield NearMiss(path, policy_refusal(path, include, exclude) or enclosure_refusal(body), size)
        yield from _enclosed(inner, include, exclude)


def _path_inside(candidate: Reached, trace: AttentionTrace) -> str:
    """The module of the weight that is passed in: one body serves several layers, and names the first."""
    weight = (trace.parameters or {}).get(candidate.gemm.weight.node, "")
    return parent_path(weight) or candidate.path
