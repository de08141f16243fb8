"""The Dynamo backend: shards a graph, then hands it to any other backend by name.

It loads on first use: explaining a model stands on the search for sites alone.
"""

from typing import TYPE_CHECKING

from oproj_pass.first_use import names_on_first_use
from oproj_pass.torch_internals import require_internals

require_internals("oproj_pass")

if TYPE_CHECKING:
    from oproj_pass.backend.entry import oproj_npu

__all__ = ["oproj_npu"]

__getattr__, __dir__ = names_on_first_use(__name__, {"oproj_npu": "entry"})
