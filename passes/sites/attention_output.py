"""Decides which GEMMs are attention output projections, and gives every other attention its reason.

Detection is by dataflow plus module path, never by name: see ``attention``. A site is a promise that the
rewrite is exact, so anything unusual about the weight (another reader, a part of a larger storage, a tensor
subclass) makes a near miss instead.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.graph.provenance import nbytes, parent_path
from oproj_pass.passes.graph.subgraphs import enclosure_refusal
from oproj_pass.passes.sites.attention import AttentionTrace
from oproj_pass.passes.sites.attention_results import Attention, Reached
from oproj_pass.passes.sites.globs import Globs
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.sites.readers import split_by_readers
from oproj_pass.passes.sites.refusals import weight_refusal
from oproj_pass.passes.sites.scan import Scan
from oproj_pass.passes.sites.unforeseen import unforeseen

_NO_ATTENTION = "follows a token mixer without softmax attention (convolution, scan or linear attention)"


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
    scan = Scan.of(gm, parameters, attention_ops)
    sites, misses = find_attention_outputs(scan, Globs(include, exclude))
    kept, shared = split_by_readers(sites, scan.paths)
    return kept, [*misses, *shared]


def find_attention_outputs(scan: Scan, globs: Globs) -> tuple[list[Projection], list[NearMiss]]:
    """The same, with weights that something else reads too."""
    outputs = _without_hidden_layers(scan.trace)
    judged = [_judge(candidate, scan.paths, globs) for candidate in outputs]
    sites = [found for found in judged if isinstance(found, Projection)]
    misses = [found for found in judged if isinstance(found, NearMiss)]
    enclosed = dict.fromkeys(_enclosed(scan.trace, globs))
    return sites, [*misses, *_unserved(scan.trace, outputs), *enclosed]


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


def _judge(candidate: Reached, paths: Mapping[Node, str] | None, globs: Globs) -> Projection | NearMiss:
    gemm = candidate.gemm
    try:
        reason = _refusal(candidate, globs)
    except Exception as error:
        reason = unforeseen(candidate.path, gemm.node, error)
    if reason is None:
        return Projection(candidate.path, gemm, paths or {})
    return NearMiss(candidate.path, reason, gemm.weight.nbytes)


def _refusal(candidate: Reached, globs: Globs) -> str | None:
    if not candidate.is_attention:
        return next((source.refusal for source in candidate.sources if source.refusal), _NO_ATTENTION)
    return globs.refusal(candidate.path) or weight_refusal(candidate.gemm)


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


def _enclosed(trace: AttentionTrace, globs: Globs) -> Iterator[NearMiss]:
    """The attentions of graphs inside the graph, where nothing is rewritten, each at its projection."""
    for body, inner in trace.inner:
        outputs = [candidate for candidate in _without_hidden_layers(inner) if candidate.is_attention]
        found = [(_path_inside(candidate, inner), candidate.gemm.weight.nbytes) for candidate in outputs]
        stay = [miss for miss in _unserved(inner, outputs) if not miss.left_by_graph_break]
        for path, size in [*found, *((miss.path, miss.nbytes) for miss in stay)]:
            yield NearMiss(path, globs.refusal(path) or enclosure_refusal(body), size)
        yield from _enclosed(inner, globs)


def _path_inside(candidate: Reached, trace: AttentionTrace) -> str:
    """The module of the weight that is passed in: one body serves several layers, and names the first."""
    weight = (trace.parameters or {}).get(candidate.gemm.weight.node, "")
    return parent_path(weight) or candidate.path
