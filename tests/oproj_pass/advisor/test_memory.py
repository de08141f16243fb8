"""Bytes: the table of the project's contract to the digit, and what they hold of a KV cache."""

import pytest

from oproj_pass.advisor.kv_cache import read_kv_cache
from oproj_pass.advisor.memory import memory_of
from oproj_pass.advisor.sites import SCHEMES, scheme_of, sites_of
from oproj_pass.advisor.workload import EXCHANGES
from oproj_pass.errors import ConfigError
from oproj_pass.explanation.traffic import COMMUNICATION_BUFFER_NBYTES

GIB = 2**30
ROW = EXCHANGES["oproj"][0]


def memory(report, size, *, layers=61, scheme="w8a8"):
    sites = sites_of(report(layers).projections, SCHEMES.get(scheme))
    fixed = COMMUNICATION_BUFFER_NBYTES
    return memory_of(sites, ROW, size=size, tokens=24, communicator_nbytes=fixed), sites


def test_the_table_of_the_contract(report):
    eight, sites = memory(report, 8)
    assert f"{sites[0].nbytes / GIB:.3f}" == "0.109"
    assert [f"{memory(report, n, layers=6)[0].saved_nbytes / GIB:.2f}" for n in (2, 4)] == ["0.33", "0.49"]
    assert f"{eight.saved_nbytes / GIB:.2f}" == "5.84"
    assert f"{eight.net_of_fixed_nbytes / GIB:.1f}" == "5.4"
    wide, dense = memory(report, 8, scheme=None)
    assert f"{dense[0].nbytes / GIB:.3f}" == "0.219"
    assert int(wide.net_of_fixed_nbytes / GIB * 10) / 10 == 11.2
    even = [COMMUNICATION_BUFFER_NBYTES / sites[0].saved_nbytes(n) for n in (2, 8)]
    assert [f"{layers:.1f}" for layers in even] == ["7.7", "4.4"]


def test_buffers_grow_with_the_largest_captured_size_and_not_with_layers(report):
    def buffers(layers, tokens):
        sites = sites_of(report(layers).projections)
        return memory_of(sites, ROW, size=8, tokens=tokens, communicator_nbytes=0).buffer_nbytes

    assert buffers(61, 24) == buffers(2, 24) > 0
    assert buffers(2, 48) == 2 * buffers(2, 24)


def test_a_shared_weight_counts_once(report):
    from dataclasses import replace

    first, second = sites_of(report(2).projections)
    shared = [first, replace(second, is_shared=True)]
    assert memory_of(shared, ROW, size=4, tokens=1, communicator_nbytes=0).saved_nbytes == first.saved_nbytes(
        4
    )


def test_block_scales_count_and_their_blocks_stay_whole(report):
    site = sites_of(report(1).projections, SCHEMES["fp8_block"])[0]
    assert site.nbytes == 7168 * 16384 + 7168 // 128 * 16384 // 128 * 4
    assert site.fits(128)
    assert not site.fits(256)


def test_a_quantisation_that_is_not_known_is_refused():
    assert scheme_of({}) is None
    assert (
        scheme_of({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}).block
        == 128
    )
    with pytest.raises(ConfigError, match=r"quant_method = 'gptq'.*--scheme w8a8"):
        scheme_of({"quantization_config": {"quant_method": "gptq"}})


GQA = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 4}


def test_grouped_heads_cache_keys_and_values():
    assert read_kv_cache(GQA).token_nbytes == 4 * 2 * 8 * 128 * 2
    assert read_kv_cache(GQA, 1).token_nbytes == 4 * 2 * 8 * 128


def test_latent_attention_caches_one_vector():
    latent = GQA | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert read_kv_cache(latent).token_nbytes == 4 * 576 * 2
    assert read_kv_cache(latent | {"index_head_dim": 128}).token_nbytes == 4 * (576 * 2 + 132)


def test_a_window_bounds_what_a_sequence_takes():
    kinds = {"layer_types": ["full_attention", *["sliding_attention"] * 3], "sliding_window": 1024}
    cache, full = read_kv_cache(GQA | kinds), read_kv_cache(GQA)
    assert cache.sequence_nbytes(512, 128) == full.sequence_nbytes(512, 128)
    assert cache.sequence_nbytes(4096, 128) == full.sequence_nbytes(4096, 128) * (4 + 3) // 16
    assert cache.block_nbytes(128) * 4 == full.block_nbytes(
        128
    )  # a block is a page of the rarest kind's layers


def test_layers_of_fixed_state_hold_no_tokens():
    cache = read_kv_cache(GQA | {"layer_types": ["linear_attention"] * 3 + ["full_attention"]})
    assert (len(cache.layers), cache.fixed_layers) == (1, 3)


@pytest.mark.parametrize("missing", ["num_attention_heads", "num_hidden_layers"])
def test_a_config_without_attention_sizes_is_refused(missing):
    with pytest.raises(ConfigError, match=f"{missing} is missing"):
        read_kv_cache({name: value for name, value in GQA.items() if name != missing})
