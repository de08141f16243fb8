"""Runs a module by one strategy on every rank of a group, all of them in this process."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from oproj_pass.passes import (
    STRATEGIES,
    Assignment,
    Axis,
    Exchange,
    Globs,
    ShardOProj,
    ShardPlan,
    ShardRecord,
    find_roles,
    run_passes,
    shard_of,
    strategy_names,
)
from oproj_pass.passes.graph.ops import registered
from oproj_pass.passes.strategies.exchange import Peers
from tests.support import quantised
from tests.support.fake import fake_world, run_on_all_ranks
from tests.support.quantised import Model, model

ONE_ROUNDING = torch.finfo(torch.bfloat16).eps  # between two neighbours in bfloat16, relative to the larger
ROUNDED_SUMS = 4 * ONE_ROUNDING  # of four partial sums, each rounded before they are added


@dataclass
class Outcome:
    """``outputs`` and ``expected`` by rank: sharded, and what the module makes of the rank's rows itself."""

    outputs: list[Tensor]
    expected: list[Tensor]
    record: ShardRecord

    @property
    def is_equal(self) -> bool:
        """Bit by bit."""
        return all(torch.equal(y, e) for y, e in zip(self.outputs, self.expected, strict=True))

    @property
    def error(self) -> float:
        """The largest difference, relative to the largest result."""
        pairs = zip(self.outputs, self.expected, strict=True)
        return max(((y.double() - e.double()).abs().max() / e.double().abs().max()).item() for y, e in pairs)


def rows(size, *shape, dtype=torch.bfloat16):
    """Every rank's activations, those of rank 0 far larger than the others'."""
    by_rank = [torch.randn(*shape).to(dtype) for _ in range(size)]
    by_rank[0] *= 100
    return by_rank


def module_of(kind):
    """A projection of that scheme, or a dense one in bfloat16."""
    if kind is nn.Linear:
        return Model(nn.Linear(64, 32, dtype=torch.bfloat16)).eval().requires_grad_(False)
    return model(kind, hidden=32)


def sharded(
    module: nn.Module,
    xs,
    strategy=None,
    *,
    roles=(),
    all_found=True,
    mesh=None,
    edit=None,
    then=None,
    slice_of=shard_of,
    dynamic=False,
    **exchange,
) -> Outcome:
    """One step of ``module``, rank r with the activations ``xs[r]``; ``edit`` sabotages the graph.
    ``then``: makes further passes of the regions that were written.

    Every projection by one ``strategy``, or every site of the ``roles`` by the role's own, which all have to
    be there unless ``all_found`` is False. ``mesh``: (a, b), over which a grid cuts K and H.
    """
    size, rows = len(xs), torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(module, (xs[0],), dynamic_shapes=({0: rows},) if dynamic else None)
    gm, signature = program.graph_module, program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    stored = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with fake_world(size) as group:
        over = Exchange(size, group, **exchange, mesh=mesh_of(*mesh) if mesh else ())

        def policy(sites, near_misses):
            return ShardPlan.for_all(sites, near_misses, over, strategy)

        if roles:
            policy = family_plan(gm, roles, names, over, all_found=all_found)
        sharding = ShardOProj(policy, parameters=names, attention_ops=registered(quantised.ATTENTION))
        further = then(sharding.regions) if then else []
        record, *_ = run_passes(gm, (), [sharding, *further])
        for check in gm.graph.find_nodes(
            op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
        ):
            gm.graph.erase_node(check)
        if edit:
            edit(gm)
        gm.recompile()
        weights = {placeholder: stored[name] for placeholder, name in names.items()}
        outputs = run_on_all_ranks(gm, record, weights, [(x,) for x in xs], size, slice_of)
    with torch.no_grad():
        expected = [module(x) for x in xs]
    return Outcome(outputs, expected, record)


def family_plan(gm, roles, parameters, exchange, *, all_found=True):
    """Every site of the roles by the first strategy that fits; ``all_found``: all roles have to be there."""
    sites, misses = find_roles(gm, dict.fromkeys(roles, Globs()), parameters=parameters)
    assert not all_found or {site.role for site in sites} == {*roles}, misses
    chosen = [Assignment(site, STRATEGIES[strategy_names(site)[0]], exchange) for site in sites]
    return ShardPlan(sites, misses, chosen)


def next_ranks_part(tensor, full, rank, size):
    """The wrong part of a stored tensor, for negative controls."""
    return shard_of(tensor, full, (rank + 1) % size, size)


def mesh_of(a, b):
    """The peers of rank 0: every b-th rank along K, the first b ranks along H."""
    along_k, along_h = dist.new_group(list(range(0, a * b, b))), dist.new_group(list(range(b)))
    return (Axis.K, Peers(a, along_k.group_name)), (Axis.H, Peers(b, along_h.group_name))
