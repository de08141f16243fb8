"""A mkdocs hook: lays the package out under its import names, where the API pages read docstrings.

`passes/` and `capture/` are installed as `oproj_pass.passes` and `oproj_pass.capture`, which a reader of
source files cannot know.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority

_TREE = TemporaryDirectory(prefix="oproj_pass_api_")


@event_priority(100)  # before the docstring reader takes its configuration
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Links the sources into one package, and points the docstring reader at it."""
    root = Path(config.config_file_path).parent
    package = Path(_TREE.name) / "oproj_pass"
    if not package.exists():
        package.mkdir()
        for source in [*(root / "oproj_pass").iterdir(), root / "passes", root / "capture"]:
            (package / source.name).symlink_to(source)
    config.plugins["mkdocstrings"].config["handlers"]["python"]["paths"] = [_TREE.name]
    return config
