"""Finds what can be sharded in one captured graph, and gives everything else its reason.

The one search of the backend, of ``explain`` and of ``load_sharded``. It needs no process group and changes
nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from oproj_pass.backend.strategy import as_configured
from oproj_pass.config import OProjConfig
from oproj_pass.passes import Globs, NearMiss, Site, find_roles
from oproj_pass.passes.graph.ops import registered
from oproj_pass.weights.checks import cut_refusal, keep_reason
from oproj_pass.weights.released import Released

Found = tuple[list[Site], list[NearMiss]]
ReaderOf = Callable[[Tensor], str | None]


def find_sites(
    gm: GraphModule, inputs: Mapping[Node, Any], config: OProjConfig, reader_of: ReaderOf | None = None
) -> Found:
    """The sites of ``gm`` that the options select and whose weights, in ``inputs``, can be cut and released.

    Of the roles that are asked for. ``reader_of``: who else reads a weight in full, in other compiled graphs;
    by default nobody.
    """
    asked = {role: Globs(*config.globs(role)) for role in config.roles}
    sites, near_misses = find_roles(gm, asked, attention_ops=registered(*config.attention_ops))
    sites = [as_configured(site, config) for site in sites]
    taken = {tensor.node for site in sites for tensor in site.stored}
    storages = _storages({node: value for node, value in inputs.items() if node not in taken})
    judged = [(site, _refusal(site, inputs, storages, reader_of)) for site in sites]
    refused = [NearMiss(site.path, reason, site.nbytes, role=site.role) for site, reason in judged if reason]
    return [site for site, reason in judged if not reason], [*near_misses, *refused]


def _storages(inputs: Mapping[Node, Any]) -> dict[int, Node]:
    """The storages behind inputs, by identity."""
    tensors = {node: value for node, value in inputs.items() if isinstance(value, Tensor)}
    return {value.untyped_storage()._cdata: node for node, value in tensors.items()}


def _refusal(
    site: Site, inputs: Mapping[Node, Any], others: Mapping[int, Node], reader_of: ReaderOf | None
) -> str | None:
    weights = [inputs[tensor.node] for tensor in site.stored]
    refusals = (_weight_refusal(weight, others, reader_of) for weight in weights)
    return next((refusal for refusal in refusals if refusal), None)


def _weight_refusal(weight: Any, others: Mapping[int, Node], reader_of: ReaderOf | None) -> str | None:
    if not isinstance(weight, Tensor) or isinstance(weight, Released):
        return None
    if (reason := cut_refusal(weight) or keep_reason(weight)) is not None:
        return reason
    storage = weight.untyped_storage()
    if storage._cdata in others:
        return f"has a weight that shares its storage with `{others[storage._cdata].name}`"
    reader = reader_of(weight) if reader_of else None
    return reader and f"has a weight that another compiled graph reads in full (`{reader}`)"
