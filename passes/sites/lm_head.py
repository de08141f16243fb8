"""Decides which GEMMs are heads of a language model, whose results leave the graph as logits (``logits``)."""

from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.gemm.axes import Axis
from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph.provenance import ends_at_a_graph_break, module_path, value_of
from oproj_pass.passes.sites.globs import Globs
from oproj_pass.passes.sites.logits import gemms_that_leave, is_of_vocabulary
from oproj_pass.passes.sites.mlp_flow import mlp_candidates
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.sites.refusals import weight_refusal
from oproj_pass.passes.sites.scan import Scan
from oproj_pass.passes.sites.unforeseen import unforeseen


def find_heads(scan: Scan, globs: Globs) -> tuple[list[Projection], list[NearMiss]]:
    """The heads of a graph, cut along their vocabulary, and near misses with their reasons."""
    mlps = {gemm.node for candidate in mlp_candidates(scan) for gemm in (*candidate.ups, candidate.down)}
    leaving = gemms_that_leave(scan)
    heads = [gemm for gemm in leaving if is_of_vocabulary(gemm, scan) or gemm.node not in mlps]
    judged = [_judge(gemm, scan, globs) for gemm in heads]
    sites = [found for found in judged if isinstance(found, Projection)]
    return sites, [found for found in judged if isinstance(found, NearMiss)]


def _judge(gemm: Gemm, scan: Scan, globs: Globs) -> Projection | NearMiss:
    path = module_path(gemm.node)
    try:
        reason = globs.refusal(path) or _refusal(gemm, scan)
    except Exception as error:
        reason = unforeseen(path, gemm.node, error)
    if reason is None:
        return Projection(path, gemm, scan.paths or {}, "lmhead", Axis.H)
    return NearMiss(path, reason, gemm.weight.nbytes, role="lmhead")


def _refusal(gemm: Gemm, scan: Scan) -> str | None:
    if not is_of_vocabulary(gemm, scan):
        features = value_of(gemm.node).shape[-1]
        return (
            f"makes {features} features of {gemm.k.extent}, and no table of this graph has {features} "
            "entries: a classifier, a pooler or a router"
        )
    if ends_at_a_graph_break(scan.gm):
        return "leaves the graph at a graph break, where logits cannot be told from a hidden state"
    if gemm.bias is not None and scan.dependence.is_activation(gemm.bias):
        return f"adds `{gemm.bias.name}`, which depends on a token, to its logits"
    return weight_refusal(gemm, Axis.H)
