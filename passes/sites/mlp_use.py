"""What an MLP's input and result are to the graph: rows of all tokens, and a term of the residual stream."""

from torch.fx import Node

from oproj_pass.passes.graph import ops
from oproj_pass.passes.sites.scan import Scan

_CARRIES = ops.LAYOUT | ops.TRANSPOSE | ops.SELECT | ops.NORM | ops.ELEMENTWISE
_LEADS_BACK = ops.LAYOUT | ops.TRANSPOSE | ops.SELECT | ops.CAST | ops.COPY
_CHOOSES = ops.SOFTMAX | ops.targets("topk", "argmax", "sort")


def use_refusal(x: Node, down: Node, scan: Scan) -> str | None:
    """Why the GEMMs between rows ``x`` and the result ``down`` are another thing than an MLP."""
    if (picks := _picking_rows(x, scan)) is not None:
        return f"reads rows that `{picks.name}` picks, as a routed expert does: each rank has its own number"
    return _misuse(down, scan)


def _picking_rows(x: Node, scan: Scan) -> Node | None:
    """The node that picks rows by an index which depends on a token, on the way back to the stream."""
    node: Node | None = x
    while node is not None:
        indices = node.all_input_nodes[1:]
        if ops.operation(node) in ops.INDEX and any(map(scan.dependence.is_activation, indices)):
            return node
        is_same_rows = ops.operation(node) in _LEADS_BACK and node.all_input_nodes
        node = node.all_input_nodes[0] if is_same_rows else None
    return None


def _misuse(down: Node, scan: Scan) -> str | None:
    """Where the result goes instead of into a sum with something else."""
    pending, reached = [down], {down}
    while pending:
        for user in pending.pop().users:
            operation = ops.operation(user)
            others = [source for source in scan.dependence.activations(user) if source not in reached]
            if user in reached or user in scan.gemms or (others and operation in ops.COMBINE):
                continue
            if (misuse := _misuse_in(user, others, scan)) is not None:
                return misuse
            if operation in _CARRIES:
                reached.add(user)
                pending.append(user)
    return None


def _misuse_in(user: Node, others: list[Node], scan: Scan) -> str | None:
    if any(user is attention.node for attention in scan.trace.attentions):
        return f"is a part of an attention or another token mixer: its result goes into `{user.name}`"
    if any(source.is_attention for other in others for source in scan.trace.results.at(other)):
        return f"gates the result of an attention in `{user.name}`"
    if ops.operation(user) in _CHOOSES:
        return f"is a router: its result goes into `{user.name}`"
    return None
