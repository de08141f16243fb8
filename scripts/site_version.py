"""A mkdocs hook: says at the foot of each page which version it describes."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Takes the version from where the wheel takes it."""
    project = (Path(config.config_file_path).parent / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    assert found, "pyproject.toml states no version"
    config.copyright = f"{config.site_name} {found[1]}"
    return config
