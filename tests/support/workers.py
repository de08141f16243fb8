"""A process that answers tasks over a pipe; one that dies, or does not answer in time, is an answer too."""

import multiprocessing as mp
import os
import signal
from unittest.mock import patch


class Worker:
    """Runs ``serve(connection)`` in a new process, with ``environment`` added to this one's variables."""

    def __init__(self, serve, environment=None):
        context = mp.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        with patch.dict(os.environ, environment or {}):
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

    def kill(self):
        self._process.kill()
        self._process.join()
        self._connection.close()


def _ending(exit_code):
    if exit_code is not None and exit_code < 0:
        return f"exit code {exit_code} ({signal.Signals(-exit_code).name})"
    return f"exit code {exit_code}"
