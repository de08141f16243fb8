"""Starts the demonstration's ranks on this machine and waits for them."""

import os
import sys
from collections.abc import Sequence
from uuid import uuid4

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

NUM_RANKS = 4


def launch(arguments: Sequence[str], num_ranks: int = NUM_RANKS) -> int:
    """Run `python -m oproj_pass.demo` with `arguments` as `num_ranks` ranks; return their exit status.

    The ranks meet on the loopback interface, at a port that is free.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "oproj_pass.demo", *arguments)
    except ChildFailedError as error:
        return error.get_first_failure()[1].exitcode  # that rank has said why
    except SignalException as signal:
        return 128 + signal.sigval
    return 0
