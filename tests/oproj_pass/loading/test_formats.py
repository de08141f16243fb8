"""The checkpoints that the tests of quantised loading make are what their formats say."""

import pytest
import torch

from tests.support.formats import AWQ, FORMATS, PackQuantized, pack_int4, unpack_int4


@pytest.mark.parametrize("kind", FORMATS)
def test_a_projection_computes_about_what_its_float_weight_does(kind):
    torch.manual_seed(0)
    weight, x = torch.randn(32, 64), torch.randn(3, 64)
    expected = x @ weight.t()
    assert (kind(weight)(x) - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize(("dim", "interleaved"), [(0, False), (1, False), (1, True)])
def test_unpacking_reverses_packing(dim, interleaved):
    q = torch.randint(0, 16, (32, 64), dtype=torch.int32)
    assert torch.equal(unpack_int4(pack_int4(q, dim, interleaved), dim, interleaved), q)


@pytest.mark.parametrize("dim", [0, 1])
def test_packs_as_compressed_tensors_does(dim):
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    q = torch.randint(0, 16, (32, 64), dtype=torch.int32)
    assert torch.equal(pack_int4(q, dim), helpers.pack_to_int32((q - 8).to(torch.int8), 4, dim))


def test_stores_the_words_that_the_formats_describe():
    """One nibble set at a time, by the tables of the formats."""
    q = torch.zeros(1, 8, dtype=torch.int32)
    for channel, nibble in enumerate([0, 4, 1, 5, 2, 6, 3, 7]):
        one = q.clone()
        one[0, channel] = 1
        assert pack_int4(one, 1).item() == 1 << 4 * channel
        assert pack_int4(one, 1, interleaved=True).item() == 1 << 4 * nibble
    names = {
        name for kind in (AWQ, PackQuantized) for name in dict(kind(torch.randn(16, 16)).named_parameters())
    }
    assert names == {
        "qweight", "qzeros", "scales",
        "weight_packed", "weight_scale", "weight_zero_point", "weight_shape",
    }  # fmt: skip
