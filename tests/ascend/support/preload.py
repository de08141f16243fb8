"""What every process over the stub needs, imported once in the process that they are forked from.

Neither of the two Ascend compilers, which do not load side by side. Nothing touches the device here: the stub
opens its log of events at the first use, and keeps it.
"""

import torch_npu  # noqa: F401
import transformers.models.deepseek_v3.modeling_deepseek_v3  # noqa: F401

import oproj_pass.passes.ascend  # noqa: F401
import tests.support.preload  # noqa: F401
