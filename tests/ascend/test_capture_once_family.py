"""Through npugraph_ex all roles, at unequal sizes, are one captured graph; their parts are read in place."""

import pytest

from tests.ascend.support import serving

ROLES = {"oproj": 2, "mlp": 2, "lmhead": 4, "embedding": 4}
SERVED = [1, 4, 3]
VOCABULARY, INTERMEDIATE = 97, 64


def language_model():
    import torch.nn.functional as F
    from torch import nn

    class LanguageModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.decoder = nn.Embedding(VOCABULARY, serving.HIDDEN), serving.Decoder(1)
            self.gate = nn.Linear(serving.HIDDEN, INTERMEDIATE, bias=False)
            self.up = nn.Linear(serving.HIDDEN, INTERMEDIATE, bias=False)
            self.down = nn.Linear(INTERMEDIATE, serving.HIDDEN, bias=False)
            self.head = nn.Linear(serving.HIDDEN, VOCABULARY, bias=False)

        def forward(self, x):
            x = self.decoder(self.embed(x))
            return self.head(x + self.down(F.silu(self.gate(x)) * self.up(x)))

    return LanguageModel().eval().requires_grad_(False).npu()


def addresses(model):
    """Of what each weight is read from: this rank's part where it is sharded."""
    parts = [getattr(weight, "shard", None) for weight in model.parameters()]
    sharded = [part.tensor.data_ptr() for part in parts if part is not None]
    whole = [weight.data_ptr() for weight in model.parameters() if not hasattr(weight, "shard")]
    return sharded, whole + [buffer.data_ptr() for buffer in model.buffers()]


def serve():
    import torch

    serving.fake_world()
    model = language_model()
    runner = serving.runner_of(serving.sharded(model, dynamic=False, sizes=ROLES), [4])
    runner.capture({"x": torch.zeros(1, dtype=torch.int64, device="npu")})
    captured, steps, shapes = serving.counters(), [], []
    for num_tokens in SERVED:
        ids = {"x": torch.zeros(num_tokens, dtype=torch.int64, device="npu")}
        steps.append(serving.events_of(lambda ids=ids: shapes.append(tuple(runner.step(ids).shape))))
    steps.append(serving.events_of(lambda: runner.idle_step({})))
    metas = [meta for graph in serving.acl_graphs() for meta in graph.graphs_meta.values()]
    return {
        "captured": captured, "served": serving.counters(), "steps": steps, "shapes": shapes,
        "group": runner._group.ranks, "weights": addresses(model),
        "read_by_address": [set(meta.captured_parameter.values()) for meta in metas],
    }  # fmt: skip


@pytest.fixture(scope="module")
def served(npu_process):
    return npu_process(serve).value


def test_is_captured_once_and_each_step_is_one_replay(served):
    assert sum(served["captured"].values()) == 1
    assert served["served"] == served["captured"]
    assert [[line.partition(" ")[0] for line in step] for step in served["steps"]] == [["replay"]] * 4
    assert served["shapes"] == [(num_tokens, VOCABULARY) for num_tokens in SERVED]
    assert served["group"] == (0, 1, 2, 3)  # whole groups of both sizes


def test_the_parts_of_all_roles_are_read_in_place(served):
    sharded, whole = served["weights"]
    assert len(sharded) == 6  # embedding, output projection, gate, up, down, head
    assert served["read_by_address"] == [{*sharded, *whole}]
