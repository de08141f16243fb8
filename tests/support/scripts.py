"""Runs a script on the ranks of a pool as torchrun does, without interpreters of their own."""

import io
import os
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

import pytest


@dataclass(frozen=True)
class Finished:
    """``status``: the highest of the ranks' exit statuses; ``stdout``, ``stderr``: theirs, rank by rank."""

    status: int
    stdout: str
    stderr: str


def run_script(pool, folder, script, *arguments, timeout=240):
    """``torchrun script arguments`` in ``folder``, on all ranks of ``pool``."""
    return finished(pool.run(_run, str(folder), str(script), arguments, init=False, timeout=timeout))


def finished(ranks):
    """One ``Finished`` of the statuses, outputs and errors that the ranks returned."""
    statuses, stdout, stderr = zip(*ranks, strict=True)
    return Finished(max(statuses), "".join(stdout), "".join(stderr))


def status_of(function):
    """The exit status of a rank whose main program is ``function``, what it printed, and its errors."""
    with redirect_stdout(io.StringIO()) as stdout, redirect_stderr(io.StringIO()) as stderr:
        try:
            status = function()
        except SystemExit as end:
            status = end.code
    return int(status or 0), stdout.getvalue(), stderr.getvalue()


def _run(folder, script, arguments):
    with pytest.MonkeyPatch.context() as patched, patch.dict(os.environ):
        patched.chdir(folder)
        patched.setattr(sys, "argv", [script, *arguments])
        return status_of(lambda: runpy.run_path(script, run_name="__main__") and 0)
