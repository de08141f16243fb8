"""The demonstration with rank 1 holding rank 0's slice of every projection; only a test starts it."""

import os
import sys

from oproj_pass.demo.__main__ import main
from oproj_pass.shard import Layout


def first_slice(layout, full):
    part = full.shape[layout.dim] // layout.group.size
    return full.detach().narrow(layout.dim, 0, part)


if os.environ["RANK"] == "1":
    Layout.slice_of = first_slice
sys.exit(main())
