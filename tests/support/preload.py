"""What every rank needs, imported once in the process that the ranks are forked from.

Nothing is compiled or computed here: a process must have a single thread when it is forked.
"""

import os
from contextlib import suppress

os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TORCHINDUCTOR_COMPILE_THREADS="1")

import torch
import torch._dynamo
import torch._inductor.compile_fx
import torch.distributed._functional_collectives

import oproj_pass.backend.entry
import oproj_pass.runtime  # noqa: F401
from tests.support.lean import leave_guards_untimed, rest_the_collector

with suppress(ImportError):  # not every environment has it
    import transformers.models.llama.modeling_llama  # noqa: F401

torch.set_num_threads(1)
leave_guards_untimed()
rest_the_collector()  # a rank collects after each function: only what that made
