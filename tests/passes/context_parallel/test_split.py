"""What is split, gathered and restored, and what is left alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from oproj_pass.passes import run_passes
from oproj_pass.passes.context_parallel import ContextGroup, ContextParallel
from oproj_pass.passes.context_parallel.index import local_rows
from oproj_pass.passes.graph.collectives import is_collective
from oproj_pass.passes.graph.provenance import value_of
from tests.support.fake import fake_world
from tests.support.prefill import HEAD_DIM, HEADS, HIDDEN, LATENT, Prefill, prefill, tokens, world_group

ROWS = 64


@pytest.fixture(scope="module", autouse=True)
def world():
    with fake_world(2):
        yield


def split(model, *inputs, group=None, dynamic_shapes=None):
    program = torch.export.export(model, inputs, dynamic_shapes=dynamic_shapes)
    before = str(program.graph_module.graph)
    (record,) = run_passes(program.graph_module, (), [ContextParallel(group or world_group())])
    assert record.is_clean == (str(program.graph_module.graph) == before)
    return program.graph_module, record


def split_prefill(length=ROWS, **options):
    return split(prefill(**options), tokens(length), torch.zeros(1, dtype=torch.int64))


def widths(record):
    """Elements of one row of what is gathered."""
    return [value_of(node).numel() // value_of(node).shape[-2] for node in record.gathered]


def test_gathers_key_and_value_heads_before_they_are_repeated_and_restores_once():
    gm, record = split_prefill()
    assert len(record.matches) == 2
    assert widths(record) == [HEADS // 2 * HEAD_DIM] * 4
    assert sum(map(is_collective, gm.graph.nodes)) == 4 + 1
    assert value_of(record.restored).shape == (1, ROWS // 2, HIDDEN)


def test_gathers_the_latent_before_it_is_projected_to_heads():
    class LatentOnly(Prefill):
        """Without the cache, that holds heads."""

        def forward(self, ids, starts):
            return super().forward(ids, starts)[0]

    gm, record = split(LatentOnly("mla").eval(), tokens(ROWS), torch.zeros(1, dtype=torch.int64))
    assert widths(record) == [LATENT] * 2
    assert sum(map(is_collective, gm.graph.nodes)) == 2 + 1


def test_gathers_keys_behind_their_rotation():
    _, record = split_prefill()
    assert [node.target for node in record.gathered[1::2]] == [torch.ops.aten.add.Tensor] * 2


@pytest.mark.parametrize("kind", ["causal", "masked", "sinks", "mla"])
def test_no_value_has_more_rows_than_the_whole_and_a_rank_together(kind):
    gm, _ = split_prefill(kind=kind)
    sizes = [
        max(value_of(n).shape, default=0) for n in gm.graph.nodes if isinstance(value_of(n), torch.Tensor)
    ]
    assert max(sizes) <= ROWS + ROWS // 2


def test_pads_short_sequences_by_less_than_two_chunks_a_rank():
    for pcp_size in range(1, 9):
        for rows in range(1, 65):
            assert rows <= pcp_size * local_rows(rows, pcp_size) < rows + 2 * pcp_size


def test_one_rank_leaves_the_graph_as_it_is():
    inputs = tokens(ROWS), torch.zeros(1, dtype=torch.int64)
    _, record = split(prefill(), *inputs, group=ContextGroup(1, 0, ""))
    assert record.is_clean
    assert not record.near_misses


class Layer(nn.Module):
    """Something between an embedding and an attention, something between it and the head."""

    def __init__(self, before=None, after=None, attend=None, head=True):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9) if head else nn.Identity()
        self.before, self.after = before or (lambda x: x), after or (lambda x: x)
        self.attend = attend or (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True))

    def forward(self, ids):
        x = self.before(self.embed(ids))
        return self.head(self.after(x + self.attend(x)))


def refusals(ids=None, **parts):
    _, record = split(Layer(**parts), torch.zeros(1, 6, dtype=torch.int64) if ids is None else ids)
    return [miss.reason for miss in record.near_misses]


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"before": lambda x: x.cumsum(1)}, "may mix rows"),
        ({"before": lambda x: x.softmax(1)}, "runs along the rows"),
        ({"before": lambda x: F.conv1d(x.mT, torch.ones(8, 8, 3), padding=1).mT}, "may mix rows"),
        ({"before": lambda x: x.mT.mT.reshape(1, 48).reshape(1, 6, 8)}, "across the rows"),
        ({"before": lambda x: x[:, torch.arange(5, -1, -1)]}, "needed whole by `index`"),
        ({"before": lambda x: torch.roll(x, 1, 1)}, "may mix rows"),
        ({"attend": lambda x: x}, "no attention"),
        ({"attend": lambda x: x @ (x.mT @ x)}, "sums over the rows"),
        ({"ids": torch.zeros(1, 1, dtype=torch.int64)}, "a decode"),
    ],
)
def test_refuses_what_it_cannot_follow_and_says_why(parts, reason):
    assert any(reason in found for found in refusals(**parts)), refusals(**parts)


@pytest.mark.parametrize(
    "after",
    [
        lambda x: x[:, -1:],
        lambda x: x.cumsum(1),
        lambda x: (x, x.mean(1)),
        lambda x: x.reshape(1, 48),
    ],
)
def test_restores_in_front_of_whatever_needs_all_rows_behind_the_last_attention(after):
    assert refusals(after=after, head=False) == []


def test_refuses_rows_that_leave_between_layers():
    class TwoResults(Layer):
        def forward(self, ids):
            x = self.embed(ids)
            y = x + self.attend(x)
            return y * 2, self.head(y + self.attend(y))

    _, record = split(TwoResults(), torch.zeros(1, 6, dtype=torch.int64))
    assert "no one value behind the last attention leads to all" in record.near_misses[0].reason


def test_refuses_a_graph_that_looks_nothing_up():
    class Bare(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    _, record = split(Bare(), torch.zeros(1, 6, 8))
    assert "looks up no embedding" in record.near_misses[0].reason


def test_keeps_row_counts_symbolic():
    rows = torch.export.Dim("rows", min=5, max=64)
    _, record = split(
        prefill(), tokens(ROWS), torch.zeros(1, dtype=torch.int64), dynamic_shapes=({1: rows}, None)
    )
    assert len(record.matches) == 2
    assert isinstance(value_of(record.restored).shape[1], torch.SymInt)


def test_gathers_keys_that_are_joined_to_an_empty_cache():
    """As transformers writes the first step over a dynamic cache."""

    def attend(x):
        keys = torch.cat((torch.tensor([]), x), dim=-2)
        return F.scaled_dot_product_attention(x, keys, keys, is_causal=True)

    _, record = split(Layer(attend=attend), torch.zeros(1, 6, dtype=torch.int64))
    assert len(record.gathered) == 1


def test_refuses_to_write_where_local_rows_say():
    """Whole values at places that are this rank's: neither is the whole."""

    def attend(x):
        cache = torch.zeros(9, 8).index_put((x[0, :, 0].long(),), torch.ones(6, 8))
        return F.scaled_dot_product_attention(x, cache[None], cache[None])

    assert any("places that it writes by local rows" in reason for reason in refusals(attend=attend))


def test_reads_the_number_of_rows_of_the_whole_sequence_from_local_values():
    class Scaled(Layer):
        def forward(self, ids):
            x = self.embed(ids)
            return self.head((x + self.attend(x)) / x.shape[1] ** 0.5)

    rows = torch.export.Dim("rows", min=5, max=64)
    gm, record = split(Scaled(), torch.zeros(1, 6, dtype=torch.int64), dynamic_shapes=({1: rows},))
    assert len(record.matches) == 1
    sizes = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int)
    assert {node.args[0].name for node in sizes} <= {"ids", "context_rows_default"}
