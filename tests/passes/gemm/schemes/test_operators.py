"""Which calls of quantised operators are taken, and what is said of the others."""

import pytest
import torch
from torch import nn

from oproj_pass.passes import Axis, Exchange, ShardOProj, find_projections, run_passes
from oproj_pass.passes.gemm.schemes import SCHEMES
from tests.support import quantised
from tests.support.fake import fake_world, run_on_all_ranks
from tests.support.layouts import words
from tests.support.quantised import Model, model, npu

ATTENTION = frozenset({torch.ops.oproj_quantised.attend})
K, H, GROUP = 64, 24, 16


def search(module, dtype=torch.bfloat16):
    """In a Dynamo graph, while Dynamo holds the buffers."""
    found = []

    def backend(gm, example_inputs):
        found.append(find_projections(gm, attention_ops=ATTENTION))
        return lambda *args: (torch.zeros(3, H),)

    with torch.no_grad():
        torch.compile(module, backend=backend, fullgraph=True)(torch.randn(3, K).to(dtype))
    return found[0]


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        (quantised.W8A8Static, "w8a8_static"),
        (quantised.W8A8Packed, "w8a8_static"),
        (quantised.W8A8Dynamic, "w8a8_dynamic"),
        (quantised.W8A8Smooth, "w8a8_dynamic"),
        (quantised.W8A8Tensor, "w8a8_dynamic"),
        (quantised.IntMM, "int_mm"),
        (quantised.ScaledTensor, "scaled_mm_tensor"),
        (quantised.ScaledStatic, "scaled_mm_tensor"),
        (quantised.ScaledRow, "scaled_mm_row"),
        (quantised.ScaledRowNamed, "scaled_mm_row"),
    ],
)
def test_names_the_scheme(kind, scheme):
    (site,), misses = search(model(kind))
    assert (site.path, site.scheme, site.in_features, site.out_features) == ("o_proj", scheme, K, H)
    assert misses == []


def test_takes_one_block_of_features_for_a_block():
    """K = 128 has one scale a row, as scales of rows have; a slice of it would cut the block."""
    module = model(quantised.ScaledBlock, features=128, hidden=160)
    program = torch.export.export(
        module.to("meta"), (torch.empty(3, 128, dtype=torch.bfloat16, device="meta"),)
    )
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    (site,), _ = find_projections(program.graph_module, parameters=names, attention_ops=ATTENTION)
    assert (site.scheme, site.gemm.k.unit, site.gemm.k.parts) == ("scaled_mm_block", 128, 1)


class StoredPackedScale(quantised.W8A8Packed):
    """vLLM-Ascend's for float16: the scale is stored as int64."""

    def store(self, features, hidden):
        super().store(features, hidden)
        self.scale = npu.npu_trans_quant_param(self.scale)

    def multiply(self, q, weight, bias):
        return npu.npu_quant_matmul(q, weight, self.scale, bias=bias, output_dtype=torch.float16)


class RoundedProduct(quantised.W8A8Static):
    def multiply(self, q, weight, bias):
        return npu.npu_quant_matmul(q, weight, self.scale, bias=bias)


class GroupSizes(quantised.W8A8Dynamic):
    def multiply(self, q, scales, weight, bias):
        return npu.npu_quant_matmul(
            q,
            weight.t(),
            self.scale,
            pertoken_scale=scales,
            output_dtype=self.dtype,
            group_sizes=[1, 128, 128],
        )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (StoredPackedScale, "an int32 bias in units of a packed scale"),
        (RoundedProduct, "its product rounded to torch.int8, which cannot be summed over ranks"),
        (GroupSizes, "scales for groups of [1, 128, 128]"),
    ],
)
def test_leaves_a_call_alone_that_cannot_be_summed_and_says_why(kind, reason):
    sites, (miss,) = search(model(kind))
    assert sites == []
    assert miss.path == "o_proj"
    assert reason in miss.reason


def test_takes_a_stored_packed_scale_where_no_bias_needs_it():
    (site,), _ = search(model(StoredPackedScale, bias=False))
    assert site.scheme == "w8a8_static"


class Fused(nn.Module):
    """``npu_weight_quant_batchmatmul`` with scales and offsets of groups, or of channels."""

    kept = ("weight", "scale", "offset")

    def __init__(self, group=GROUP):
        super().__init__()
        self.group = group
        self.register_buffer("weight", torch.randint(-127, 128, (K, H), dtype=torch.int8))
        groups = (K // group, H) if group else (H,)
        self.register_buffer("scale", torch.rand(groups) / 50)
        self.register_buffer("offset", torch.rand(groups))
        self.register_buffer("bias", torch.randn(H))

    def forward(self, x):
        return npu.npu_weight_quant_batchmatmul(
            x, self.weight, self.scale, self.offset, bias=self.bias, antiquant_group_size=self.group
        )


class Int8Pack(nn.Module):
    kept = ("weight",)

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (H, K), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(H) / 50)

    def forward(self, x):
        return torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scale)


FUSED = {"groups": Fused, "channels": lambda: Fused(group=0), "int8pack": Int8Pack}


@pytest.fixture(params=FUSED)
def fused(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return FUSED[request.param]()


def test_cuts_the_rows_of_group_scales_of_a_fused_operator(fused):
    (site,), misses = search(Model(fused), torch.float32)
    assert misses == []
    assert site.scheme == "weight_only"
    has_groups = getattr(fused, "group", 0)
    assert {cut.path for cut in site.along(Axis.K).tensors} == {
        f"o_proj.{name}" for name in (fused.kept if has_groups else ["weight"])
    }
    assert site.gemm.k.unit == (has_groups or 1)


def test_keeps_every_ranks_result_of_a_fused_operator(fused):
    program = torch.export.export(Model(fused), (torch.randn(3, K),))
    names, gm = program.graph_signature.inputs_to_buffers, program.graph_module
    weights = {node: fused.get_buffer(path.removeprefix("o_proj.")) for node, path in names.items()}
    inputs = [(torch.randn(3, K),) for _ in range(2)]
    with fake_world(2) as name:
        rewrite = ShardOProj(Exchange(2, name), parameters=names, attention_ops=ATTENTION)
        (record,) = run_passes(gm, (), [rewrite])
        outputs = run_on_all_ranks(gm, record, weights, inputs, 2)
    for y, (x,) in zip(outputs, inputs, strict=True):
        torch.testing.assert_close(y, fused(x))


class Int4Words(Fused):
    """Eight int4 along the features in an int32: [H, K/8], read transposed."""

    def __init__(self):
        super().__init__()
        self.weight = words(H, K // 8)

    def forward(self, x):
        return npu.npu_weight_quant_batchmatmul(
            x, self.weight.t(), self.scale, self.offset, antiquant_group_size=self.group
        )


def test_keeps_whole_words_of_a_fused_operator_on_one_rank():
    (site,), _ = search(Model(Int4Words()), torch.float32)
    assert {cut.path: (cut.dim, cut.unit) for cut in site.along(Axis.K).tensors} == {
        "o_proj.weight": (1, 8), "o_proj.scale": (0, GROUP), "o_proj.offset": (0, GROUP),
    }  # fmt: skip


class Int4Pack(nn.Module):
    """A weight in the tiles of one kernel."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.zeros(H, K // 2, dtype=torch.uint8))
        self.register_buffer("scales_and_zeros", torch.ones(K // 32, H, 2))

    def forward(self, x):
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.weight, 32, self.scales_and_zeros)


def test_refuses_a_weight_packed_for_one_kernel_and_says_what_to_do():
    program = torch.export.export(Model(Int4Pack()), (torch.randn(3, K),))
    names = program.graph_signature.inputs_to_buffers
    sites, (miss,) = find_projections(program.graph_module, parameters=names, attention_ops=ATTENTION)
    assert sites == []
    assert "whose tiles mix its input features: shard before packing" in miss.reason


class Cached(nn.Module):
    """A buffer that the step writes is a cache, whatever multiplies it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.zeros(H, K))

    def forward(self, x):
        self.weight[:3].copy_(x)
        return nn.functional.linear(x, self.weight)


def test_takes_no_buffer_that_the_step_writes():
    sites, _ = search(Model(Cached()), torch.float32)
    assert sites == []


def test_every_scheme_has_operators_of_its_own():
    assert all("::" in name for name in SCHEMES)
