"""The rules on the KV connector chain: rule 10 of the table, and two facts that the table is silent about.

16: a connector's own tp and dp sizes agree with the deployment. 17: a connector that works between layers
needs piecewise graphs. Both hold without the o_proj knob.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from oproj_pass.deployment.connectors import Connector
from oproj_pass.deployment.facts import Facts
from oproj_pass.deployment.findings import Finding, error, warning
from oproj_pass.deployment.knobs import assigned
from oproj_pass.deployment.mending import OFFLOAD_CONNECTORS, chain_to_set, graph_mode_to_set, graphs_to_set
from oproj_pass.deployment.rule import Rule
from oproj_pass.deployment.switches import is_on

__all__ = ["connector_sizes", "layerwise_connector", "preempt_offload"]


def preempt_offload(facts: Facts) -> Iterator[Finding]:
    """Rule 10: a preempted request must find its KV cache again without the prefill node."""
    names = [connector.name for connector in facts.connectors]
    if facts.splits and not set(OFFLOAD_CONNECTORS) & set(names):
        present, former = OFFLOAD_CONNECTORS
        remedy = (
            f"Combine the transfer connector and {present} under a MultiConnector (releases up to "
            f"August 2026 call it {former})."
        )
        required = f"a chain that holds {present} with {assigned(facts.splits)}"
        yield error(Rule.PREEMPT_OFFLOAD, names, required, remedy, change=chain_to_set(facts))


def connector_sizes(facts: Facts) -> Iterator[Finding]:
    """16: the tp_size and dp_size that a connector states for this node are the deployment's.

    A consumer's own side is `decode`, a producer's is `prefill`; the other side describes the peer.
    """
    deployment = facts.deployment
    expected = {"tp_size": "tensor_parallel_size", "dp_size": "data_parallel_size"}
    for connector in facts.connectors:
        for side in _own_sides(connector):
            stated = connector.extra_config.get(side)
            if not isinstance(stated, Mapping):
                continue
            for key, field in expected.items():
                actual = getattr(deployment, field)
                if key in stated and stated[key] != actual:
                    path = f"{connector.path}.kv_connector_extra_config.{side}.{key}"
                    remedy = f"Set {path} ({connector.name}) and {field} to the same number."
                    required = f"{field}, which is {actual}"
                    change = chain_to_set(facts)
                    yield error(
                        Rule.CONNECTOR_SIZES, stated[key], required, remedy, field=path, change=change
                    )


def _own_sides(connector: Connector) -> tuple[str, ...]:
    return ("prefill",) * connector.is_producer + ("decode",) * connector.is_consumer


def layerwise_connector(facts: Facts) -> Iterator[Finding]:
    """17: full graphs replay without Python: a hook between layers is skipped, KV cache is read too early.

    `use_layerwise` says that the hooks are at work. A connector that is layerwise by name pushes from the
    producer and leaves them idle on a pure consumer, where full graphs are in common use: a warning there.
    """
    if not facts.graph_mode.has_full_graphs:
        return
    for connector in facts.connectors:
        by_setting = is_on(connector.extra_config.get("use_layerwise"))
        if by_setting or "layerwise" in connector.name.lower():
            certain = by_setting or connector.is_producer
            report = error if certain else warning
            required = f"PIECEWISE or NONE with the layerwise connector {connector.name} at {connector.path}"
            mode = graph_mode_to_set(facts)
            remedy = f"Set cudagraph_mode to {mode}, or use a connector that does not work layer by layer."
            change = graphs_to_set(facts)
            yield report(Rule.LAYERWISE_CONNECTOR, facts.graph_mode.name, required, remedy, change=change)
