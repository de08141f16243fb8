"""Decides which GEMMs are an MLP's, and gives every other pair with an activation between its reason.

A site is a promise that a rank can compute its part of the intermediate features alone: see ``inner``.
"""

from collections.abc import Sequence

from torch.fx import Node

from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.gemm.axes import Axis
from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph.provenance import common_path, module_path, parent_path
from oproj_pass.passes.sites.experts import routed_experts
from oproj_pass.passes.sites.globs import Globs
from oproj_pass.passes.sites.inner import read_inner
from oproj_pass.passes.sites.inner_state import NotElementwise
from oproj_pass.passes.sites.logits import vocabulary_gemms
from oproj_pass.passes.sites.mlp import Mlp
from oproj_pass.passes.sites.mlp_flow import Candidate, mlp_candidates
from oproj_pass.passes.sites.mlp_use import use_refusal
from oproj_pass.passes.sites.refusals import weight_refusal
from oproj_pass.passes.sites.same_rows import same_rows
from oproj_pass.passes.sites.scan import Scan
from oproj_pass.passes.sites.unforeseen import unforeseen


def find_mlps(scan: Scan, globs: Globs) -> tuple[list[Mlp], list[NearMiss]]:
    """The MLPs of a graph, and near misses with their reasons, each in graph order."""
    sites, misses, taken = list[Mlp](), list[NearMiss](), set[Node]()
    heads = {gemm.node for gemm in vocabulary_gemms(scan)}
    for candidate in mlp_candidates(scan):
        if candidate.down.node in heads:
            continue
        found = _judge(candidate, scan, globs, taken)
        if isinstance(found, Mlp):
            taken |= found.readers
            sites.append(found)
        elif candidate.down.node not in scan.of_mixers:  # a mixer's own projection has its reason already
            misses.append(found)
    return sites, [*misses, *routed_experts(scan, globs)]


def _judge(candidate: Candidate, scan: Scan, globs: Globs, taken: set[Node]) -> Mlp | NearMiss:
    gemms = (*candidate.ups, candidate.down)
    path = _path_of(gemms)
    try:
        reason = globs.refusal(path) or _refusal(candidate, scan, taken)
        if reason is None:
            inner = read_inner([up.node for up in candidate.ups], candidate.down, candidate.between, scan)
            return Mlp(
                path,
                scan.paths or {},
                candidate.ups,
                candidate.down,
                inner.nodes,
                inner.literals,
                inner.rows,
                inner.segments,
            )
    except NotElementwise as refusal:
        reason = str(refusal)
    except Exception as error:
        reason = unforeseen(path, candidate.down.node, error)
    return NearMiss(path, reason, sum(gemm.weight.nbytes for gemm in gemms), role="mlp")


def _refusal(candidate: Candidate, scan: Scan, taken: set[Node]) -> str | None:
    first, *others = candidate.ups
    for gemm in (*candidate.ups, candidate.down):
        if gemm.node in taken:
            return f"shares `{gemm.node.name}` with an MLP that was taken before"
    if not all(same_rows(first.input, up.input) for up in others):
        return "multiplies results of GEMMs that read different inputs"
    if (refusal := use_refusal(first.input, candidate.down.node, scan)) is not None:
        return refusal
    refusals = (*map(_up_refusal, candidate.ups), weight_refusal(candidate.down))
    return next((refusal for refusal in refusals if refusal), None)


def _up_refusal(up: Gemm) -> str | None:
    if up.bias is not None and up.bias_along_output() is None:
        return f"adds `{up.bias.name}` to its intermediate, which is no stored value of each feature"
    return weight_refusal(up, Axis.H)


def _path_of(gemms: Sequence[Gemm]) -> str:
    """The innermost module that holds all of its GEMMs."""
    paths = [module_path(gemm.node) for gemm in gemms]
    path = paths[0]
    for other in paths[1:]:
        path = common_path(path, other)
    return path if path != paths[-1] or len(set(paths)) > 1 else parent_path(path)
