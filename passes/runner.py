"""Runs passes in order: checks each result, recomputes metadata for what changed, and keeps the record.

Knows no pass by name. A pass is any callable ``(gm, example_inputs) -> PassRecord`` with a ``name``.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from oproj_pass.passes.contract import GraphPass, PassRecord
from oproj_pass.passes.graph.metadata import propagate, value_key
from oproj_pass.passes.graph.provenance import placeholders

logger = logging.getLogger(__name__)


def run_passes(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    passes: Sequence[GraphPass],
    *,
    observer: Callable[[PassRecord], None] | None = None,
) -> list[PassRecord]:
    """Apply each pass to ``gm`` in place; raises what a pass raises, ``RuntimeError`` for a broken graph.

    ``observer`` is called after each pass, when ``gm`` has been checked.
    """
    inputs = placeholders(gm)
    key = value_key(inputs[0]) if inputs else "val"
    records = []
    for number, graph_pass in enumerate(passes, 1):
        record = graph_pass(gm, example_inputs)
        if not record.is_clean:
            propagate(record.changed, key)
            gm.graph.lint()
            gm.recompile()
        logger.info(
            "pass %d/%d %s: %d matched, %d near misses, %d nodes changed, %.1f ms",
            number, len(passes), record.name, len(record.matches), len(record.near_misses),
            len(record.changed), record.seconds * 1e3,
        )  # fmt: skip
        records.append(record)
        if observer is not None:
            observer(record)
    return records
