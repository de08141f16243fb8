"""The demonstration as one rank of a pool runs it."""

import os
from contextlib import nullcontext
from unittest.mock import patch

from oproj_pass.demo.app import Options, run
from oproj_pass.weights.placement import Placement
from tests.support.scripts import status_of


def demonstrated(folder, max_tokens, wrong_slice):
    """This rank's exit status, output and errors; ``wrong_slice``: rank 1 holds rank 0's slices."""
    sabotaged = wrong_slice and os.environ["RANK"] == "1"
    with patch.object(Placement, "part_of", first_slice) if sabotaged else nullcontext():
        return status_of(lambda: run(Options(folder, max_tokens, json=True)))


def first_slice(placement, full):
    return full.detach().narrow(placement.dim, 0, full.shape[placement.dim] // placement.group.size)
