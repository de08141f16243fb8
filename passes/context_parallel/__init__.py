"""Splits the rows of a prefill over the ranks of a group, behind its embedding, and restores them once.

1. Scan: follow the rows of the embedding through the graph (``trace``), by one rule an operation (``rules``).
2. Decide: where keys and values are gathered, and at which one value rows are restored (``plan``). A graph in
   which rows cannot be followed up to there is left alone, with the reasons.
3. Rewrite: this rank's rows of the embedding and of all that meets it; keys and values gathered and put in
   order; masks by position; sizes that count rows; the restore in front of the head (``emit``).

Scheduler, sampler and head see whole rows and know nothing of the split. Every rank rewrites alike, but for
its own place, and has to bring the same ids.
"""

from oproj_pass.passes.context_parallel.emit import ContextGroup
from oproj_pass.passes.context_parallel.split_context import ContextParallel, ContextRecord, SplitAttention

__all__ = ["ContextGroup", "ContextParallel", "ContextRecord", "SplitAttention"]
