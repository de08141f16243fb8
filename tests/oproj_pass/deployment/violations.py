"""A change of a valid node for each rule, which violates that rule."""


def _connectors(fields):
    return fields["kv_transfer_config"]["kv_connector_extra_config"]["connectors"]


def _peer_sizes(fields):
    sizes = {"tp_size": 7}
    _connectors(fields)[0]["kv_connector_extra_config"] |= {"prefill": sizes, "decode": sizes}


def _sizes(fields):
    return fields["additional_config"]["finegrained_tp_config"]


def _unequal_mlp(fields):
    fields["mlp_intermediate_sizes"] = [4096, 1002]
    _share_too(fields, "mlp")


def _drafted_head(fields):
    fields["speculative_method"] = "mtp"
    fields["additional_config"]["enable_pcp_embedding_lmhead_weight_sharding"] = False
    _share_too(fields, "lmhead")


def _share_too(fields, role):
    """Another role over ranks that fill every group, where o_proj is shared."""
    sizes = _sizes(fields)
    sizes[f"{role}_tensor_parallel_size"] = min(4, sizes["oproj_tensor_parallel_size"])


# rule -> a change that violates it and no other rule, except where `_ALSO` and `_HIDES` say so
VIOLATIONS = {
    1: lambda f: _sizes(f).update(wo_proj_tensor_parallel_size=2),
    2: lambda f: f.update(tensor_parallel_size=2),
    3: lambda f: f.update(data_parallel_size=12),
    4: lambda f: f["kv_transfer_config"].update(kv_role="kv_producer"),
    5: lambda f: f["additional_config"]["scheduler_config"].update(recompute_scheduler_enable=False),
    6: lambda f: f.update(is_moe=False),
    7: lambda f: f.update(num_attention_heads=5, head_dim=100),
    8: lambda f: f.update(cudagraph_mode="NONE"),
    9: lambda f: f.update(prefill_context_parallel_size=2),
    10: lambda f: _connectors(f).pop(),
    11: lambda f: f.update(prefill_context_parallel_size=2, cudagraph_mode="FULL"),
    12: lambda f: f.update(pipeline_parallel_size=2),
    13: lambda f: f.update(max_num_seqs=600),
    16: _peer_sizes,
    17: lambda f: _connectors(f)[0]["kv_connector_extra_config"].update(use_layerwise=True),
    18: lambda f: _sizes(f).update(olora_tensor_parallel_size=1),
    19: lambda f: f["additional_config"].update(enable_pcp_o_proj_weight_sharding=True),
    20: lambda f: f["additional_config"]["scheduler_config"].update(nonbsp_config={"enabled": True}),
    21: lambda f: f.update(prefill_context_parallel_size=2, device_type="cuda"),
    22: _unequal_mlp,
    23: _drafted_head,
}
