"""The command `oproj`. A command loads what it needs when it runs.

`plan` and `check` do without torch, and so do `explain` and `advise` once a config.json has been traced.
"""

from oproj_pass.cli.main import app

__all__ = ["app"]
