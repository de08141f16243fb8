"""What a custom pass does to one graph of torchair or npugraph_ex.

1. Let pre-sharded weights stand for the full ones, so that their projections are found (``presharded``).
2. Decide which projections are taken (``plan``), and rewrite them (``ShardOProj``).
3. Spell what it emitted in the compilers' dialect (``dialect``).
4. Give every weight that is still full its slice, cut inside the graph: the compiler owns the inputs here, so
   a placeholder cannot change its meaning behind its back.

The graph stays functional: the compilers have already noted which inputs are written.
"""

import logging
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from oproj_pass.passes.ascend.dialect import respell
from oproj_pass.passes.ascend.plan import plan_of
from oproj_pass.passes.ascend.presharded import require_cut_alike, stand_in_for_full_weights
from oproj_pass.passes.ascend.settings import Settings
from oproj_pass.passes.ascend.weights import cut_in_graph, marked_weights
from oproj_pass.passes.graph.provenance import placeholders, value_of
from oproj_pass.passes.runner import run_passes
from oproj_pass.passes.shard import ShardOProj, ShardRecord
from oproj_pass.passes.sites.expected import listed

logger = logging.getLogger(__name__)


def shard(gm: GraphModule, example_inputs: Sequence[Any], settings: Settings) -> None:
    """Shard the projections of ``gm`` in place; raises an ``OProjError`` that names the layer."""
    exchange = settings.exchange
    marked = marked_weights(gm, example_inputs)
    presharded = stand_in_for_full_weights(gm, exchange)
    full = {node: value_of(node) for node in placeholders(gm)}
    plan = plan_of(gm, settings, marked, presharded)
    (record,) = run_passes(gm, example_inputs, [ShardOProj(plan)])
    assert isinstance(record, ShardRecord)
    if record.is_clean:
        logger.info(
            "no output projection sharded in this graph. %s", listed("Near misses", record.near_misses)
        )
        return
    require_cut_alike(presharded, record.regions)
    respell(record.changed, exchange, settings.ranks)
    cut_in_graph(gm, record.regions, full, presharded, settings.rank)
    gm.graph.lint()
    gm.recompile()
