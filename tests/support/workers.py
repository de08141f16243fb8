"""A process that answers tasks over a pipe; one that dies, or does not answer in time, is an answer too."""

import multiprocessing as mp
import os
import signal
from importlib import import_module
from unittest.mock import patch

from tests.support.system_calls import with_room

_preloaded = []  # what the fork server has imported: an interpreter has one such server


class Worker:
    """Runs ``serve(connection)`` in a new process, with ``environment`` added to this one's variables.

    ``preload``: a module that one process imports, from which all workers with the same one are forked;
    without it the process is a new interpreter.
    """

    def __init__(self, serve, environment=None, preload=None):
        context = _context(preload)
        self._connection, theirs = context.Pipe()
        arguments = (serve, theirs, environment or {}, preload)
        self._process = context.Process(target=_serve_with, args=arguments, daemon=True)
        with patch.dict(os.environ, environment or {}):  # the loader reads some before Python runs
            self._process.start()
        theirs.close()

    def send(self, task):
        self._connection.send(task)

    def receive(self, timeout):
        """The next answer; ``("lost", text)`` from a dead one. Killed if silent for ``timeout`` seconds."""
        try:
            if self._connection.poll(timeout):
                return self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(5)
            return "lost", f"process ended with {_ending(self._process.exitcode)}"
        self.kill()
        return "lost", f"no answer within {timeout} s"

    def close(self):
        """Hang up, so that the process ends and says what it measured; killed if it does not."""
        self._connection.close()
        self._process.join(5)
        self.kill()

    def kill(self):
        self._process.kill()
        self._process.join()
        self._connection.close()


def _context(preload):
    if preload is None or (_preloaded and _preloaded != [preload]):
        return mp.get_context("spawn")
    _preloaded[:] = [preload]
    context = mp.get_context("forkserver")
    context.set_forkserver_preload([preload])
    return context


def _serve_with(serve, connection, environment, preload):
    os.environ.update(environment)  # a forked process has those of the first one
    if preload is not None:
        import_module(preload)  # at no cost where it was forked; its errors, which a fork server swallows
    with_room(serve, connection)


def _ending(exit_code):
    if exit_code is not None and exit_code < 0:
        return f"exit code {exit_code} ({signal.Signals(-exit_code).name})"
    return f"exit code {exit_code}"
