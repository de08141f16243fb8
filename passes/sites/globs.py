"""Which modules ``include`` and ``exclude`` leave alone, and which of their globs match nothing."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

# Modules of speculative draft models; an ``include`` glob that matches takes them all the same.
DRAFT_MODULES = ("*mtp_block*", "mtp.*", "*.mtp.*", "*draft_model*", "*eagle*", "*medusa*")
_LISTED = 8


@dataclass(frozen=True)
class Globs:
    """Which modules one role may take: ``include`` (empty: all), without ``exclude``."""

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()

    def refusal(self, path: str) -> str | None:
        """Why the module at ``path`` is left alone, None if it is not."""
        if self.include and not _matches(path, self.include):
            return "matches no `include` glob"
        if _matches(path, self.exclude):
            return "matches an `exclude` glob"
        if not self.include and _matches(path, DRAFT_MODULES):
            return "belongs to a speculative draft model: name it in `include` to take it"
        return None


def _matches(path: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(path, glob) for glob in globs)


def unmatched_globs(include: Sequence[str], exclude: Sequence[str], paths: Collection[str]) -> str | None:
    """In words, the globs that match none of a graph's ``paths``; None if there is no such glob."""
    given = [("include", glob) for glob in include] + [("exclude", glob) for glob in exclude]
    idle = [
        f"{name} = {glob!r}" for name, glob in given if not any(fnmatchcase(path, glob) for path in paths)
    ]
    if not idle or not paths:
        return None
    listed = ", ".join(list(dict.fromkeys(paths))[:_LISTED]) + (", ..." if len(set(paths)) > _LISTED else "")
    return f"{', '.join(idle)}: matches no projection or attention of this graph. Paths here: {listed}."
