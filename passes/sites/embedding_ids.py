"""What the ids of a lookup are: tokens that come with the batch, or positions that the graph counts."""

from torch.fx import Node

from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.dependence import Dependence

_KEEPS_IDS = (
    ops.LAYOUT | ops.TRANSPOSE | ops.CAST | ops.COPY | ops.SELECT | ops.COMBINE | ops.targets(
        "long", "int", "where", "masked_fill", "clamp", "clip", "mul", "minimum", "maximum", "remainder",
    )
)  # fmt: skip


def are_of_the_batch(ids: Node, dependence: Dependence) -> bool:
    """Whether ids are an input of the graph, at most shifted, clamped or masked.

    Ranges, and what is counted over tokens or picked by such counts, are positions.
    """
    pending, seen = [ids], {ids}
    while pending:
        node = pending.pop()
        if node.op == "placeholder":
            return True
        is_picked = ops.operation(node) in ops.INDEX and len(node.all_input_nodes) > 1
        if ops.operation(node) in _KEEPS_IDS and not is_picked:
            new = [source for source in dependence.activations(node) if source not in seen]
            seen.update(new)
            pending += new
    return False
