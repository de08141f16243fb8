"""A row-parallel layer as one rank of an engine builds it, without the engine."""

IN, OUT = 512, 256


def build_layer(rank, prefix, quant_config=None, cls=None, load_sharded=True, **arguments):
    """A row-parallel layer of an engine that shards over two ranks, as ``rank`` builds it."""
    import types
    from unittest.mock import patch

    from vllm.distributed import parallel_state
    from vllm.model_executor.layers.linear import RowParallelLinear
    from vllm.plugins import load_general_plugins

    from oproj_pass.groups import ShardGroup
    from oproj_pass.integrations.vllm import Settings, layers

    load_general_plugins()
    group = ShardGroup(None, None, (0, 1), rank)
    unsharded = types.SimpleNamespace(world_size=1, rank_in_group=0)
    with (
        patch.object(
            layers, "settings_of_model", lambda _: Settings({"oproj": 2}, load_sharded=load_sharded)
        ),
        patch.object(layers, "shard_group_of", lambda _: group),
        patch.object(parallel_state, "_TP", unsharded),
    ):
        cls = cls or RowParallelLinear
        return cls(IN, OUT, bias=False, quant_config=quant_config, prefix=prefix, **arguments)
