"""What no rule of a search foresaw costs the site, never the compile."""

import logging

from torch.fx import Node

logger = logging.getLogger(__name__)


def unforeseen(path: str, node: Node, error: Exception) -> str:
    """The reason of a near miss for a call that raised ``error`` while a search judged it; logs where."""
    logger.warning("%s: the search cannot judge `%s`", path, node.format_node(), exc_info=error)
    return f"has a call that the search cannot read ({type(error).__name__}: {error})"
