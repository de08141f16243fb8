"""Memory never holds all shards and more than one full tensor: the system's own count says so."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.support.workers import Worker

MIB = 2**20
LAYERS, HIDDEN, FEATURES, RANKS = 6, 512, 16384, 8
WEIGHT = HIDDEN * FEATURES * 4
SLACK = 12 * MIB  # of the interpreter's own, over a load


class Attention(nn.Module):
    """Attention whose projection is all that it stores."""

    def __init__(self, features):
        super().__init__()
        self.features = features
        self.o_proj = nn.Linear(features, HIDDEN, bias=False)

    def forward(self, x):
        heads = x.repeat(1, self.features // HIDDEN).unflatten(-1, (-1, 64)).transpose(0, 1)
        return self.o_proj(
            nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(0, 1).flatten(1)
        )


def build(features):
    with torch.device("meta"):
        return nn.Sequential(*[Attention(features) for _ in range(LAYERS)]).requires_grad_(False)


def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def peak_of_a_load(folder, features, size):
    """Bytes by which this process's resident memory rose at its highest, over what it had before."""
    import oproj_pass
    from tests.support.fake import fake_world

    with fake_world(RANKS):
        Path("/proc/self/clear_refs").write_text("5")  # forget earlier peaks
        before = status("VmRSS")
        model = build(features)
        config = {"oproj_tensor_parallel_size": size}
        oproj_pass.load_sharded(model, folder, config, example_args=(torch.zeros(1, HIDDEN),))
        return status("VmHWM") - before


def serve(connection):
    while True:
        connection.send(peak_of_a_load(*connection.recv()))


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """Peaks by number of ranks; 1 loads everything."""
    worker, peaks = Worker(serve), {}
    try:
        for features in (HIDDEN, FEATURES):  # the first is small, and brings in what the process needs anyway
            folder = tmp_path_factory.mktemp("checkpoint")
            weights = {f"{i}.o_proj.weight": torch.zeros(HIDDEN, features) for i in range(LAYERS)}
            save_file(weights, folder / "model.safetensors")
            for size in (RANKS, 1):
                worker.send((folder, features, size))
                peaks[size] = worker.receive(timeout=120)
    finally:
        worker.kill()
    return peaks


def test_holds_the_shards_and_one_tensor_at_most(peaks):
    assert peaks[RANKS] <= LAYERS * WEIGHT / RANKS + WEIGHT + SLACK


def test_holds_every_tensor_where_nothing_is_sharded(peaks):
    assert peaks[1] >= LAYERS * WEIGHT
    assert peaks[1] > 2 * peaks[RANKS]
