"""Keeps what tracing a config.json found, for the next question about it.

1. Key: everything that a trace depends on, so that an entry is never stale: the config's text, the options,
   every installed distribution, the sources of torch, transformers and this package by their times and
   sizes, the interpreter, and the environment variables that torch and transformers read.
2. Read: an entry whose digest is wrong is not there.
3. Write: whole or not at all; the oldest beyond ``_KEPT`` go. A folder that cannot be written is no error.
"""

import hashlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["TraceCache", "key_of"]

_KEPT = 64
_SOURCES = ("oproj_pass", "oproj_pass.passes", "oproj_pass.capture", "torch", "transformers")
_SAY_WHAT_IS_INSTALLED = (".dist-info", ".egg-info", ".egg-link")
_READ_BY = ("TORCH", "PYTORCH", "TRANSFORMERS", "HF_", "USE_HUB_KERNELS", "OPROJ")

logger = logging.getLogger(__name__)


class TraceCache:
    """Entries in ``folder``, by key; ``None``: no cache."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @classmethod
    def of_user(cls) -> "TraceCache":
        """The folder of the user's cache, by the XDG specification."""
        try:
            base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        except RuntimeError:  # no home
            return cls(None)
        return cls(Path(base) / "oproj_pass" / "traces")

    def get(self, key: str) -> bytes | None:
        """The entry, None where there is none that is whole."""
        if self._folder is None:
            return None
        try:
            digest, body = (self._folder / key).read_bytes().split(b"\n", 1)
            if digest.decode() != _digest(body):
                raise ValueError("its digest is wrong")
            return body
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.info("the entry %s of %s is left aside: %s", key, self._folder, error)
            return None

    def put(self, key: str, body: bytes) -> None:
        """Keep an entry, if it can be kept."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                file.write(_digest(body).encode() + b"\n" + body)
            Path(file.name).replace(self._folder / key)
            self._drop_the_oldest()
        except OSError as error:
            logger.info("nothing is kept in %s: %s", self._folder, error)

    def _drop_the_oldest(self) -> None:
        assert self._folder is not None
        entries = sorted(self._folder.iterdir(), key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in entries[_KEPT:]:
            entry.unlink(missing_ok=True)


def key_of(config: Path, question: Mapping[str, Any]) -> str:
    """The key of a question about a config.json: a digest of all that the answer depends on."""
    facts = {
        "config": config.read_bytes().hex(),
        "question": question,
        "python": [sys.version, sys.flags.optimize, sys.platform],
        "environment": sorted(item for item in os.environ.items() if item[0].startswith(_READ_BY)),
        "distributions": sorted(_distributions()),
        "sources": {package: _stamp(package) for package in _SOURCES},
    }
    return _digest(json.dumps(facts, sort_keys=True).encode())


def _distributions() -> Iterator[str]:
    """What is installed, by the folders that say so, whose names hold the versions."""
    for place in filter(os.path.isdir, sys.path):
        with os.scandir(place) as entries:
            yield from (entry.path for entry in entries if entry.name.endswith(_SAY_WHAT_IS_INSTALLED))


def _stamp(package: str) -> str:
    """Names, times and sizes of a package's Python files, in one digest."""
    spec = find_spec(package)
    found = [seen for place in (spec and spec.submodule_search_locations) or () for seen in _sources(place)]
    return _digest(repr(sorted(found)).encode())


def _sources(place: str) -> Iterator[tuple[str, int, int]]:
    """Walked by ``os``: pathlib takes thrice as long for the thousands of files."""
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _sources(entry.path)
            elif entry.name.endswith(".py"):
                status = entry.stat()
                yield entry.path, status.st_mtime_ns, status.st_size


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
