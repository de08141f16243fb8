"""The Dynamo backend: shards a graph, then hands it to any other backend by name."""

from oproj_pass.torch_internals import require_internals

require_internals("oproj_pass")

from oproj_pass.backend.entry import oproj_npu

__all__ = ["oproj_npu"]
