"""Decides which GEMMs are heads of a language model, whose results leave the graph as logits (``logits``)."""

import logging

from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.gemm.axes import Axis
from oproj_pass.passes.gemm.gemm import Gemm
from oproj_pass.passes.graph.provenance import module_path
from oproj_pass.passes.sites.globs import Globs
from oproj_pass.passes.sites.logits import vocabulary_gemms
from oproj_pass.passes.sites.projection import Projection
from oproj_pass.passes.sites.refusals import weight_refusal
from oproj_pass.passes.sites.scan import Scan

logger = logging.getLogger(__name__)


def find_heads(scan: Scan, globs: Globs) -> tuple[list[Projection], list[NearMiss]]:
    """The heads of a graph, cut along their vocabulary, and near misses with their reasons."""
    judged = [_judge(gemm, scan, globs) for gemm in vocabulary_gemms(scan)]
    sites = [found for found in judged if isinstance(found, Projection)]
    return sites, [found for found in judged if isinstance(found, NearMiss)]


def _judge(gemm: Gemm, scan: Scan, globs: Globs) -> Projection | NearMiss:
    path = module_path(gemm.node)
    try:
        reason = globs.refusal(path) or weight_refusal(gemm, Axis.H)
    except Exception as error:  # what no rule foresaw costs the site, never the compile
        logger.warning("%s: the search cannot judge `%s`", path, gemm.node.format_node(), exc_info=True)
        reason = f"has a call that the search cannot read ({type(error).__name__}: {error})"
    if reason is None:
        return Projection(path, gemm, scan.paths or {}, "lmhead", Axis.H)
    return NearMiss(path, reason, gemm.weight.nbytes, role="lmhead")
