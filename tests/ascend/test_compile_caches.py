"""AOTAutograd's cache cannot hold an Ascend compiler's graph: forced on one, it is kept away.

`aot_compile`, which vLLM uses, forces it; vllm-ascend#15545 has the failure of a bare ``npugraph_ex``.
"""

from types import SimpleNamespace

import pytest

FORCED = {"enable_autograd_cache": True, "force_autograd_cache": True, "bundled_autograd_cache": True}
OPTIONS = {"npugraph_ex": {}, "npu": {"debug.run_eagerly": True}}


def compile_with_forced_caches(inner, inner_options):
    import torch
    import torch._functorch.config as functorch_config

    from tests.ascend.support.models import decoder
    from tests.ascend.test_backend import compile_sharded, fake_world

    fake_world()
    with functorch_config.patch(FORCED), torch.inference_mode():
        bare = error_of(torch.compile(decoder().npu(), backend=inner_compiler(inner), dynamic=False))
        looked_up = torch._dynamo.utils.counters["aot_autograd"].total()
        model = decoder().npu()
        error = error_of(compile_sharded(model, inner_backend=inner, inner_options=inner_options))
        return SimpleNamespace(
            bare=bare,
            error=error,
            looked_up=(looked_up, torch._dynamo.utils.counters["aot_autograd"].total()),
            sharded=[layer.o_proj.weight.untyped_storage().nbytes() for layer in model.layers],
            forced=functorch_config.force_autograd_cache,
        )


def inner_compiler(inner):
    """The compiler as its package makes it, without anything of this project."""
    from importlib import import_module

    module = import_module({"npugraph_ex": "npugraph_ex", "npu": "torchair"}[inner])
    configuration = module.CompilerConfig()
    if inner == "npu":
        configuration.debug.run_eagerly = True
    return module.get_npu_backend(compiler_config=configuration)


def error_of(step):
    import torch

    try:
        step(torch.zeros(4, 32).npu())
    except Exception as error:
        return str(error)
    return ""


@pytest.fixture(scope="module", params=list(OPTIONS))
def outcome(request, npu_process):
    return npu_process(compile_with_forced_caches, request.param, OPTIONS[request.param]).value


def test_compiles_and_shards(outcome):
    assert outcome.error == ""
    assert outcome.sharded == [0, 0]


def test_asks_the_cache_for_nothing_and_leaves_its_settings(outcome):
    before, after = outcome.looked_up
    assert before == after > 0
    assert outcome.forced


def test_a_bare_compiler_fails_so_the_workaround_is_needed(outcome):
    assert "expected OutputCode" in outcome.bare
