"""Keeps the sites whose stored tensors nothing else reads: who reads a part must know that it is one.

A tensor of several sites that cut it alike is one shard, and every use of it is rewritten.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from torch.fx import Node

from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.graph.effects import is_mere_check
from oproj_pass.passes.graph.provenance import real_value, storage_of
from oproj_pass.passes.sites.site import Site

_Site = TypeVar("_Site", bound=Site)


def split_by_readers(
    sites: Sequence[_Site], paths: Mapping[Node, str] | None
) -> tuple[list[_Site], list[NearMiss]]:
    """Keep the sites whose tensors nothing else reads, no dropped site either; a weight at several is one."""
    kept, misses = list(sites), list[NearMiss]()
    while dropped := _read_elsewhere(kept, paths):
        kept = [site for site in kept if site.node not in dropped]
        misses += [
            NearMiss(
                site.path,
                f"has a weight that is also read by {dropped[site.node]}",
                site.nbytes,
                role=site.role,
            )
            for site in sites
            if site.node in dropped
        ]
    return kept, misses


def _read_elsewhere(sites: Sequence[Site], paths: Mapping[Node, str] | None) -> dict[Node, str]:
    """Per site with a stored tensor that anything but these sites reads, that reader."""
    users: dict[Node, list[Site]] = defaultdict(list)
    for site in sites:
        for tensor in site.stored:
            users[tensor.node].append(site)
    aliases = _shared_storage(users, paths)
    strangers = {node: _other_reader(node, found) or aliases.get(node) for node, found in users.items()}
    return {site.node: stranger for node, stranger in strangers.items() if stranger for site in users[node]}


def _shared_storage(weights: Collection[Node], paths: Mapping[Node, str] | None) -> dict[Node, str]:
    """Per weight over whose storage lies another parameter, no site's weight, that one's path."""
    others = {
        storage_of(real)._cdata: path
        for node, path in (paths or {}).items()
        if node not in weights and (real := real_value(node)) is not None
    }
    stored = {weight: real for weight in weights if (real := real_value(weight)) is not None}
    shared = {weight: others.get(storage_of(real)._cdata) for weight, real in stored.items()}
    return {weight: f"`{path}`" for weight, path in shared.items() if path is not None}


def _other_reader(weight: Node, sites: Sequence[Site]) -> str | None:
    """What reads the stored tensor besides the given sites, which all cut it; None if nothing does."""
    if len({(on.split, on.unit) for site in sites for on in site.stored if on.node is weight}) > 1:
        return "another projection that sums over its other dimension"
    constants = {node for site in sites for node in site.constants}
    return stray_reader(weight, constants.union(*(site.readers for site in sites)), constants)


def stray_reader(tensor: Node, readers: Collection[Node], constants: Collection[Node]) -> str | None:
    """What reads a stored tensor, or the constants made of it, besides ``readers``; None if nothing does."""
    for node in (tensor, *constants):
        for user in node.users:
            if user not in readers and not is_mere_check(user):
                return f"`{user.name}`"
    return None
