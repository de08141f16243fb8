"""What is done to a released weight: it is refused by name, taken by the shard, or converted with it."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from oproj_pass import EagerStepError, WeightReleasedError
from oproj_pass.groups import ShardGroup
from oproj_pass.weights.placement import Placement
from oproj_pass.weights.released import Released, ReleasedBuffer, ReleasedParameter, adopt, release
from tests.support.fake import fake_world
from tests.support.models import decoder, rows

FIRST_OF_TWO = Placement.split(1, ShardGroup(None, None, (0, 1), 0))


@pytest.fixture
def weight():
    weight = nn.Parameter(torch.randn(4, 6), requires_grad=False)
    release([weight], "layers.0.o_proj", FIRST_OF_TWO)
    return weight


MERGES = {
    "add": lambda w: w + torch.ones(4, 2) @ torch.ones(2, 6),
    "add to data": lambda w: w.data.__iadd__(torch.ones(4, 6)),
    "add_": lambda w: w.add_(torch.ones(4, 6)),
    "from the left": lambda w: torch.ones(4, 6) + w,
    "torch.add": lambda w: torch.add(w, torch.ones(4, 6), alpha=2),
    "scale": lambda w: w.mul_(2),
    "addmm": lambda w: torch.addmm(w, torch.ones(4, 2), torch.ones(2, 6)),
    "a rotation": lambda w: torch.eye(4) @ w,
    "a rotation by mm": lambda w: torch.mm(torch.eye(4), w),
    "a transpose": lambda w: w.T,
    "by keyword": lambda w: torch.add(input=w, other=torch.ones(4, 6)),
}


@pytest.mark.parametrize("how", MERGES)
def test_says_how_to_merge_an_adapter(weight, how):
    with pytest.raises(WeightReleasedError, match="merge an adapter into it") as raised:
        MERGES[how](weight)
    assert "layers.0.o_proj (rank 0" in str(raised.value)
    assert "full_state_dict" in str(raised.value)


@pytest.mark.parametrize(
    ("use", "x"),
    [
        (lambda x, weight: x @ weight.t(), torch.ones(2, 6)),
        (lambda ids, weight: F.embedding(ids, weight), torch.tensor([1, 0])),
    ],
    ids=["product", "lookup"],
)
def test_takes_a_product_and_a_lookup_in_a_forward_for_a_step(weight, use, x):
    class Layer(nn.Module):
        def forward(self, x):
            return use(x, weight)

    with pytest.raises(EagerStepError, match="about to run eager"):
        Layer()(x)


def test_takes_merged_values_as_advised(weight):
    merged = torch.randn(4, 6)
    weight.data.copy_(merged)
    assert torch.equal(weight.shard.tensor, merged[:, :3])


READERS = {
    "data_ptr": lambda w: w.data_ptr(),
    "numpy": lambda w: w.numpy(),
    "storage": lambda w: w.storage(),
    "from_dlpack": torch.from_dlpack,
    "reductions": torch.multiprocessing.reductions.reduce_tensor,
    "linear": lambda w: F.linear(w, torch.ones(2, 6)),
}


@pytest.mark.parametrize("how", READERS)
def test_refuses_a_reader_by_name(weight, how):
    with pytest.raises(WeightReleasedError, match=r"layers\.0\.o_proj"):
        READERS[how](weight)


COLLECTIVES = {
    "gathered": lambda w: dist.all_gather_into_tensor(torch.empty(8, 6), w),
    "gathered into": lambda w: dist.all_gather_into_tensor(w, torch.empty(2, 6)),
    "gathered to a list": lambda w: dist.all_gather([w, w], torch.empty(4, 6)),
    "broadcast": lambda w: dist.broadcast(w.data, src=0),
    "reduced": dist.all_reduce,
    "scattered from a list": lambda w: dist.reduce_scatter(torch.empty(4, 6), [w, w]),
    "exchanged": lambda w: dist.all_to_all_single(w, torch.empty(4, 6)),
    "received": lambda w: dist.recv(w, src=1),
}


@pytest.mark.filterwarnings("ignore:`torch.distributed.all_gather_into_tensor` is deprecated")
@pytest.mark.parametrize("how", COLLECTIVES)
def test_refuses_a_collective_on_the_full_weight(weight, how):
    with fake_world(2), pytest.raises(WeightReleasedError, match="a collective of"):
        COLLECTIVES[how](weight)


def test_refuses_values_written_to_the_emptied_storage(weight):
    weight.untyped_storage().resize_(4 * 6 * 4)
    filled = torch.empty(0).set_(weight.untyped_storage(), 0, (4, 6))
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        filled.copy_(torch.ones(4, 6))


# Each reads the memory in C++, where no class of Python is asked.
BELOW_PYTHON = """
import sys, torch, torch.distributed as dist
from torch import nn
from oproj_pass.groups import ShardGroup
from oproj_pass.weights.released import release
from oproj_pass.weights.placement import Placement
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
weight = nn.Parameter(torch.randn(4, 6), requires_grad=False)
release([weight], "o_proj", Placement.split(1, ShardGroup(None, None, (0, 1), 0)))
reader = {
    "dlpack": lambda: torch.utils.dlpack.to_dlpack(weight),
    "broadcast": lambda: dist.group.WORLD.broadcast(weight, 0).wait(),
    "storage": lambda: weight.untyped_storage().data_ptr(),
}[sys.argv[1]]
try:
    reader()
except RuntimeError as error:
    print(error)
dist.destroy_process_group()  # a thread of gloo's that runs at exit ends the process with an error
"""


@pytest.mark.parametrize("how", ["dlpack", "broadcast", "storage"])
def test_raises_below_python_where_an_empty_storage_would_crash(how):
    ended = subprocess.run(
        [sys.executable, "-c", BELOW_PYTHON, how], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert "Cannot access data pointer" in ended.stdout


CONVERSIONS = {
    "to": lambda module: module.to(torch.bfloat16),
    "bfloat16": lambda module: module.bfloat16(),
    "half": lambda module: module.half(),
    "double": lambda module: module.double(),
}


@pytest.mark.parametrize("how", CONVERSIONS)
def test_converts_a_sharded_model_whole(how):
    model, reference = CONVERSIONS[how](sharded()), CONVERSIONS[how](decoder())
    dtype = reference.layers[0].up.weight.dtype
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    for layer, full in zip(model.layers, reference.layers, strict=True):
        weight = layer.attn.o_proj.weight
        assert type(weight) is ReleasedParameter
        assert weight.shape == (32, 32)
        assert torch.equal(weight.shard.tensor, full.attn.o_proj.weight[:, :16])
        assert weight.untyped_storage().nbytes() == 0


def test_serves_a_converted_model():
    with fake_world(2), torch.inference_mode():
        model = decoder()
        step = torch.compile(model, backend="oproj_npu", options={"oproj_tensor_parallel_size": 2})
        step(rows(3, 32))
        model.to(torch.bfloat16)
        assert step(rows(3, 32).bfloat16()).dtype is torch.bfloat16


def test_passes_a_conversion_that_changes_nothing():
    model = sharded()
    before = {name: (parameter, parameter.data) for name, parameter in model.named_parameters()}
    shards = [layer.attn.o_proj.weight.shard for layer in model.layers]
    model.to("cpu").to(torch.float32).cpu().float()
    assert all(parameter is before[name][0] for name, parameter in model.named_parameters())
    assert [layer.attn.o_proj.weight.shard for layer in model.layers] == shards


def test_converts_a_buffer_to_a_buffer():
    buffer = adopt(torch.randn(4, 3), FIRST_OF_TWO, "o_proj.qweight", (4, 6), buffer=True)
    assert type(buffer.half()) is ReleasedBuffer


def test_refuses_a_conversion_that_would_lose_the_values(weight):
    with pytest.raises(WeightReleasedError, match="`to`"):
        weight.to("meta")
    assert isinstance(weight, Released)


def sharded():
    """A decoder whose projections are released to the first of two slices."""
    model = decoder()
    for number, layer in enumerate(model.layers):
        release([layer.attn.o_proj.weight], f"layers.{number}.attn.o_proj", FIRST_OF_TWO)
    return model
