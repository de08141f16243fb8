"""Names the routed experts of a graph: near misses, with the bytes of all of them.

Their weights lie in stacks of matrices, one an expert. A product with a stack whose activated result reaches
another one is an expert's, and so is every single operator that reads two stacks. They are left alone because
each token reads a few of them: sharing them is expert parallelism, which exchanges tokens by expert.
"""

from collections.abc import Iterator, Mapping

from torch.fx import Node

from oproj_pass.passes.contract import NearMiss
from oproj_pass.passes.graph import ops
from oproj_pass.passes.graph.provenance import common_path, module_path, nbytes, rank_of, value_of
from oproj_pass.passes.sites.globs import Globs
from oproj_pass.passes.sites.mlp_flow import Flow, flow_of
from oproj_pass.passes.sites.scan import Scan

_CHAIN = ops.TRANSPOSE | ops.LAYOUT | ops.CAST | ops.COPY | ops.SELECT
_KNOWN = _CHAIN | ops.ELEMENTWISE | ops.NORM | ops.TOKEN_MIXER | ops.FACTORY


def routed_experts(scan: Scan, globs: Globs) -> Iterator[NearMiss]:
    """One near miss for the experts of each module."""
    stacks: dict[str, dict[Node, None]] = {}
    for path, found in _stacks_of_experts(scan):
        stacks.setdefault(path, {}).update(dict.fromkeys(found))
    for path, weights in stacks.items():
        count = max(value_of(weight).shape[0] for weight in weights)
        reason = f"holds {count} routed experts, of which each token reads a few: share them by expert"
        yield NearMiss(path, globs.refusal(path) or reason, sum(map(nbytes, weights)), role="mlp")


def _stacks_of_experts(scan: Scan) -> Iterator[tuple[str, list[Node]]]:
    flows: dict[Node, Flow] = {}
    read: dict[Node, list[Node]] = {}
    for node in scan.gm.graph.nodes:
        if node in scan.gemms or node.op not in ("call_function", "call_method"):
            continue
        if found := _stacks_read_by(node, scan):
            read[node] = found
            before = _flow_into(node, flows)
            if len(found) > 1:
                yield module_path(node), found
            elif before is not None and before.activated:
                ups = [up for up in read if up in before.ups]
                path = common_path(module_path(ups[0]), module_path(node))
                yield path, [*(stack for up in ups for stack in read[up]), *found]
            flows[node] = Flow(frozenset((node,)))
        elif (flow := flow_of(node, scan, flows)) is not None:
            flows[node] = flow


def _flow_into(node: Node, flows: Mapping[Node, Flow]) -> Flow | None:
    return next((flows[source] for source in node.all_input_nodes if source in flows), None)


def _stacks_read_by(node: Node, scan: Scan) -> list[Node]:
    """The stored stacks of matrices that an operation multiplies an activation with."""
    operation = ops.operation(node)
    is_product = operation in ops.MATMUL or operation not in _KNOWN
    if not is_product or not any(map(scan.dependence.is_activation, node.all_input_nodes)):
        return []
    sources = dict.fromkeys(_stored(source) for source in node.all_input_nodes)
    return [s for s in sources if rank_of(s) == 3 and scan.is_stored(s)]


def _stored(node: Node) -> Node:
    while ops.operation(node) in _CHAIN and node.args and isinstance(node.args[0], Node):
        node = node.args[0]
    return node
