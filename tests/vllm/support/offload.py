"""A KV connector that keeps the cache of preempted requests in a pool of so many tokens, on a CPU.

It moves whole blocks, within which an attention lays out keys and values as it likes.
"""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)


@dataclass
class Moves(KVConnectorMetadata):
    """The blocks to keep and to restore in a step, by request."""

    keep: dict[str, list[int]] = field(default_factory=dict)
    restore: dict[str, list[int]] = field(default_factory=dict)


class PreemptOffloadConnector(KVConnectorBase_V1):
    """``pool_tokens`` may be set between requests, on the scheduler's side."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.block_size = vllm_config.cache_config.block_size
        self.pool_tokens = 0
        self.requests, self.blocks = {}, {}  # of the scheduler
        self.kept_tokens, self.restoring = {}, []
        self.caches, self.kept = {}, {}  # of the worker
        assert role in KVConnectorRole

    # The scheduler's side.

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return max(self.kept_tokens.get(request.request_id, 0) - num_computed_tokens, 0), False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.requests[request.request_id] = request
        self.blocks[request.request_id] = list(blocks.get_block_ids()[0])
        if num_external_tokens:
            self.restoring.append(request.request_id)

    def build_connector_meta(self, scheduler_output):
        moves, running = Moves(), scheduler_output.scheduled_cached_reqs
        for name in sorted(scheduler_output.preempted_req_ids or ()):
            length = self.requests[name].num_tokens - 1
            if sum(self.kept_tokens.values()) + length <= self.pool_tokens:
                self.kept_tokens[name] = length
                moves.keep[name] = self._first_blocks(name, length)
        for name in self.restoring:
            moves.restore[name] = self._first_blocks(name, self.kept_tokens.pop(name))
        for name, added in zip(running.req_ids, running.new_block_ids, strict=True):
            if added and name not in running.resumed_req_ids:
                self.blocks[name].extend(added[0])
        self.restoring = []
        return moves

    def _first_blocks(self, name, num_tokens):
        return self.blocks[name][: -(-num_tokens // self.block_size)]

    # The worker's side.

    def register_kv_caches(self, kv_caches):
        self.caches = kv_caches

    def handle_preemptions(self, kv_connector_metadata):
        for name, blocks in kv_connector_metadata.keep.items():
            self.kept[name] = {layer: cache[blocks] for layer, cache in self.caches.items()}

    def start_load_kv(self, forward_context, **kwargs):
        for name, blocks in self._get_connector_metadata().restore.items():
            for layer, values in self.kept.pop(name).items():
                self.caches[layer][blocks] = values

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        pass
