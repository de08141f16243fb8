"""The command `oproj`. A command loads what it needs when it runs: `plan` and `check` start without torch."""

from oproj_pass.cli.main import app

__all__ = ["app"]
