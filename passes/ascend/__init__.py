"""The sharding as a custom pass of Ascend's two compilers, torchair and npugraph_ex, in their own dialect."""

from oproj_pass.passes.ascend.custom_pass import CustomPass, npu_pass
from oproj_pass.passes.ascend.presharded import WeightShard

__all__ = ["CustomPass", "WeightShard", "npu_pass"]
