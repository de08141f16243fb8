"""A graph's products and collectives get the times of their shapes, and nothing else does."""

from oproj_pass.advisor.collectives import Transfer, transfer_us
from oproj_pass.advisor.node_times import node_timer
from oproj_pass.advisor.profile import load_profile
from oproj_pass.passes.diff import GraphSnapshot
from oproj_pass.passes.diff.graph_snapshot import NodeSnapshot, Ref

PROFILE = load_profile("h200")
X = NodeSnapshot("x", "placeholder", "x", (), (192, 2048), "bfloat16")
W = NodeSnapshot("w", "placeholder", "w", (), (7168, 2048), "bfloat16")
LINEAR = NodeSnapshot(
    "y", "call_function", "torch._C._nn.linear", (Ref("x"), ", ", Ref("w"), ", None"), (192, 7168), "bfloat16"
)
FLAT = NodeSnapshot("f", "call_function", "torch.reshape", (Ref("x"), ", [-1]"), (192 * 2048,), "bfloat16")


def collective(name, args, shape):
    return NodeSnapshot(
        name, "call_function", f"torch.ops._c10d_functional.{name}.default", args, shape, "bfloat16"
    )


SCATTER = collective("all_to_all_single", (Ref("f"), ", [1, 1, 1, 1], [1, 1, 1, 1], '0'"), (192 * 2048,))
REDUCE = collective("reduce_scatter_tensor", (Ref("y"), ", 'sum', 8, '1'"), (24, 7168))
GRAPH = GraphSnapshot((X, W, LINEAR, FLAT, SCATTER, REDUCE))


def test_a_collective_takes_what_its_bytes_and_ranks_take():
    time = node_timer(PROFILE)
    for node, transfer in (
        (SCATTER, Transfer("all_to_all", 4, 192 * 2048 * 2)),
        (REDUCE, Transfer("reduce_scatter", 8, 192 * 7168 * 2)),
    ):
        assert time(node, GRAPH) == transfer_us(PROFILE, transfer)[0].value


def test_a_product_takes_longer_by_another_frameworks_kernels():
    times = {framework: node_timer(PROFILE, framework)(LINEAR, GRAPH) for framework in ("vllm", "sglang")}
    assert all(time > 0 for time in times.values())
    assert times["vllm"] != times["sglang"]


def test_what_is_neither_has_no_time():
    assert [node_timer(PROFILE)(node, GRAPH) for node in (X, W, FLAT)] == [None] * 3
