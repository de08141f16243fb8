"""The errors of the project: one type for each thing a reader has to do about it.

Imports nothing, so that every package may raise from here.
"""

__all__ = [
    "ConfigError",
    "EagerStepError",
    "GroupMismatchError",
    "OProjError",
    "RedundantGatherError",
    "SiteMismatchError",
    "StreamOrderError",
    "TorchVersionError",
    "WeightReleasedError",
]


class OProjError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigError(OProjError, ValueError):
    """A setting is wrong: the message names the field, its value, what is required and the remedy."""


class SiteMismatchError(OProjError, RuntimeError):
    """The projections found in a graph are not the ones that were asked for."""


class GroupMismatchError(OProjError, RuntimeError):
    """The ranks of a group disagree (graph, token count, presence); raised on every rank of it."""


class EagerStepError(OProjError, RuntimeError):
    """A step would run eager, where ranks may bring different token counts and hang the collectives."""


class RedundantGatherError(OProjError, RuntimeError):
    """A graph gathers what every rank of the group holds already, so that it would hold N copies of it."""


class StreamOrderError(OProjError, RuntimeError):
    """The events of a graph do not order its streams: a step could hang, or read what is not made yet."""


class TorchVersionError(OProjError, ImportError):
    """The installed torch lacks something this project stands on; raised on import."""


class WeightReleasedError(OProjError, RuntimeError):
    """A full weight was read after it had been released to rank-local shards."""
