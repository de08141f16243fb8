"""Decides which GEMMs are attention output projections, and gives every other attention its reason.

Detection is by dataflow plus module path, never by name: see ``attention``. A site is a promise that the
rewrite is exact, so anything unusual about the weight (another reader, a part of a larger storage, a tensor
subclass) makes a near miss instead.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from oproj_pass.passes.attention import Attention, Reached, trace_attention
from oproj_pass.passes.gemm import Gemm, is_plain
from oproj_pass.passes.provenance import nbytes, parameter_paths, real_value, value_of

# Modules of speculative draft models; an ``include`` glob that matches takes them all the same.
DRAFT_MODULES = ("*mtp_block*", "mtp.*", "*.mtp.*", "*draft_model*", "*eagle*", "*medusa*")


@dataclass(frozen=True)
class Projection:
    """One attention output projection: ``y [.., H] = x [.., K] @ weight (+ bias)``."""

    path: str
    attention: str
    gemm: Gemm
    weight_path: str
    scheme: str
    in_features: int
    out_features: int
    dtype: torch.dtype

    @property
    def weight(self) -> Node:
        """The placeholder of the stored weight."""
        return self.gemm.weight.source

    @property
    def nbytes(self) -> int:
        """Bytes of the full weight."""
        return nbytes(self.weight)


@dataclass(frozen=True)
class NearMiss:
    """An attention, or a projection-like GEMM, that is left alone, and why."""

    path: str
    reason: str
    nbytes: int = 0
    left_by_graph_break: bool = False


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
    attentions, reached = trace_attention(gm, paths, attention_ops)
    sites, misses = [], []
    for candidate in reached:
        reason = _refusal(candidate, include, exclude)
        if reason is None:
            sites.append(_projection(candidate, paths))
        elif candidate.feeds is None or not candidate.is_attention:
            misses.append(NearMiss(candidate.path, reason, nbytes(candidate.gemm.weight.source)))
    sites, shared = _split_by_readers(sites)
    return sites, [*misses, *shared, *_unreached(attentions, reached)]


def _refusal(candidate: Reached, include: Sequence[str], exclude: Sequence[str]) -> str | None:
    if not candidate.is_attention:
        return "follows a token mixer without softmax attention (convolution, scan or linear attention)"
    if candidate.feeds is not None:
        return f"feeds `{candidate.feeds.name}` of the same module: a hidden layer, not an output projection"
    return _policy_refusal(candidate.path, include, exclude) or _weight_refusal(candidate.gemm)


def _policy_refusal(path: str, include: Sequence[str], exclude: Sequence[str]) -> str | None:
    if include and not _matches(path, include):
        return "matches no `include` glob"
    if _matches(path, exclude):
        return "matches an `exclude` glob"
    if not include and _matches(path, DRAFT_MODULES):
        return "belongs to a speculative draft model: name it in `include` to take it"
    return None


def _matches(path: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(path, glob) for glob in globs)


def _weight_refusal(gemm: Gemm) -> str | None:
    value, real = value_of(gemm.weight.source), real_value(gemm.weight.source)
    if not is_plain(gemm):
        return "scales its product or bias (alpha or beta is not 1)"
    if not isinstance(value, Tensor) or any(isinstance(size, torch.SymInt) for size in value.shape):
        return "has no static weight shape in the graph's metadata"
    if is_traceable_wrapper_subclass(real if real is not None else value):
        return f"has a weight of type {type(real).__name__}, a tensor subclass with its own dispatch"
    if not value.is_floating_point() or value.element_size() < 2:
        return f"has a {value.dtype} weight, a quantisation scheme that is not supported"
    return None


def _projection(candidate: Reached, paths: Mapping[Node, str] | None) -> Projection:
    gemm = candidate.gemm
    shape = value_of(gemm.weight.source).shape
    attention = next(source for source in candidate.sources if source.softmax)
    return Projection(
        path=candidate.path,
        attention=attention.path,
        gemm=gemm,
        weight_path=(paths or {}).get(gemm.weight.source, gemm.weight.source.name),
        scheme="dense",
        in_features=shape[gemm.contraction_dim],
        out_features=shape[1 - gemm.contraction_dim],
        dtype=value_of(gemm.weight.source).dtype,
    )


def _split_by_readers(sites: list[Projection]) -> tuple[list[Projection], list[NearMiss]]:
    """Keep the sites whose weight nothing else reads; a weight at several sites is one shard."""
    by_weight = defaultdict(list)
    for site in sites:
        by_weight[site.weight].append(site)
    strangers = {weight: _other_reader(weight, users) for weight, users in by_weight.items()}
    kept = [site for site in sites if strangers[site.weight] is None]
    misses = [
        NearMiss(site.path, f"has a weight that is also read by {strangers[site.weight]}", site.nbytes)
        for site in sites
        if strangers[site.weight] is not None
    ]
    return kept, misses


def _other_reader(weight: Node, sites: list[Projection]) -> str | None:
    expected = {(site.gemm.node, site.gemm.operand) for site in sites}
    inner = {node for site in sites for node in site.gemm.weight.chain}
    if len({site.gemm.contraction_dim for site in sites}) > 1:
        return "another projection that sums over its other dimension"
    for node in (weight, *inner):
        for user in node.users:
            if user not in inner and ((user, node) not in expected or user.all_input_nodes.count(node) > 1):
                return f"`{user.name}`"
    return None


def _unreached(attentions: list[Attention], reached: list[Reached]) -> list[NearMiss]:
    served = {source for candidate in reached for source in candidate.sources}
    return [_lost(attention) for attention in attentions if attention.softmax and attention not in served]


def _lost(attention: Attention) -> NearMiss:
    path = attention.path or attention.node.name
    if not attention.ended_at:
        return NearMiss(path, "its result is not used")
    node, what = attention.ended_at[0]
    where = "" if node.op == "output" else f" at `{node.name}`"
    reason = f"its result {what}{where} before it meets a projection"
    return NearMiss(path, reason, left_by_graph_break=node.op == "output")
