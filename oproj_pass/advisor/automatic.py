"""What "auto" takes where the machine is known: the largest N whose step is about as fast as unsharded."""

import logging
from collections.abc import Iterable, Sequence
from functools import cache

import torch

from oproj_pass.advisor.profile import Profile, load_profile, profile_names
from oproj_pass.advisor.step_time import step_difference
from oproj_pass.advisor.workload import EXCHANGES, Shape, kind_of
from oproj_pass.passes import Projection
from oproj_pass.passes.strategies.token_sizes import token_sizes

__all__ = ["advised_size", "profile_named", "profile_of", "shape_of"]

logger = logging.getLogger(__name__)

SLOWDOWN_MS = 0.3
"""What a step may cost: the time model's error on published points."""


def advised_size(shapes: Iterable[Shape], sizes: Sequence[int], profile: Profile, tokens: int) -> int:
    """The largest of ``sizes`` (all above 1) whose step of ``tokens`` is at most ``SLOWDOWN_MS`` slower.

    By the row strategy. Where all are slower, the least slow one: choosing the backend asks for sharding.
    """
    row, shapes = EXCHANGES["oproj"][0], list(shapes)
    found = {
        size: step_difference(profile, shapes, row, size=size, tokens=tokens).difference.value
        for size in sizes
    }
    free = [size for size, ms in found.items() if ms <= SLOWDOWN_MS]
    chosen = max(free) if free else min(found, key=lambda size: found[size])
    listed = ", ".join(f"N = {size}: {ms:+.2f} ms" for size, ms in sorted(found.items()))
    logger.info(
        "%s: a step of %d tokens is predicted to change by %s; auto takes %d",
        profile.name, tokens, listed, chosen,
    )  # fmt: skip
    return chosen


def shape_of(site: Projection, reduce_dtype: torch.dtype | None) -> Shape:
    """The shape of a projection in a graph."""
    token = token_sizes(site, reduce_dtype)
    return Shape(
        role=site.role,
        out_features=site.out_features,
        in_features=site.in_features,
        weight_itemsize=site.nbytes / (site.out_features * site.in_features),
        input_itemsize=token.input_itemsize,
        partial_itemsize=token.sum_itemsize,
        kind=kind_of(token.input_itemsize),
    )


def profile_of(device: torch.device) -> Profile | None:
    """The profile of the machine that ``device`` is in; None where none is known, and for the CPU."""
    name = getattr(getattr(torch, device.type, None), "get_device_name", None)
    return None if name is None or device.type == "cpu" else profile_named(str(name(device)))


@cache
def profile_named(device: str) -> Profile | None:
    """The profile whose device this is, the longest name first: `GB200` is no `B200`."""
    known = [(mark, load_profile(name)) for name in profile_names() for mark in load_profile(name).devices]
    found = [(mark, profile) for mark, profile in known if mark in device]
    return max(found, key=lambda item: len(item[0]))[1] if found else None
