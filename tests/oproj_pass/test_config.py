"""The backend's options: every wrong one is refused by name, with the remedy."""

import pytest
import torch

from oproj_pass import ConfigError, OProjConfig
from oproj_pass.capture import StepBound, plan_capture


def test_is_automatic_without_options():
    config = OProjConfig.from_options(None)
    assert (config.oproj_tensor_parallel_size, config.inner_backend) == ("auto", "auto")
    assert config.release_weights
    assert not config.check_uniform


@pytest.mark.parametrize("value", [0, 1, 8, "8", "auto"])
def test_accepts_whole_numbers_of_ranks_and_auto(value):
    size = OProjConfig(oproj_tensor_parallel_size=value).oproj_tensor_parallel_size
    assert size == (value if value == "auto" else int(value))


@pytest.mark.parametrize("value", [-1, 2.5, 2.0, True, None, "two", "", [2]])
def test_refuses_any_other_size_and_says_what_is_required(value):
    with pytest.raises(
        ConfigError, match=r"oproj_tensor_parallel_size = .*required: 'auto' or a whole number"
    ):
        OProjConfig(oproj_tensor_parallel_size=value)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("oproj_tp_size", "oproj_tensor_parallel_size"),
        ("inner_backends", "inner_backend"),
        ("excluded", "exclude"),
    ],
)
def test_suggests_the_option_that_was_meant(wrong, meant):
    with pytest.raises(ConfigError, match=f"unknown option '{wrong}': did you mean '{meant}'"):
        OProjConfig(**{wrong: 1})


def test_lists_the_options_when_none_is_close():
    with pytest.raises(ConfigError, match=r"unknown option 'zzz': known: .*expected_sites"):
        OProjConfig(zzz=1)


def test_reports_every_wrong_option_at_once():
    with pytest.raises(ConfigError) as refused:
        OProjConfig(oproj_tensor_parallel_size=-1, timeout=0, expected_sites=-2)
    for field in ("oproj_tensor_parallel_size", "timeout", "expected_sites"):
        assert field in str(refused.value)


@pytest.mark.parametrize("value", ["float32", "torch.bfloat16", torch.float16, None])
def test_accepts_types_that_collectives_can_sum(value):
    dtype = OProjConfig(reduce_dtype=value).reduce_dtype
    assert dtype is None if value is None else dtype.is_floating_point


@pytest.mark.parametrize("value", ["int8", "float33", torch.float8_e4m3fn, torch.int32, 3])
def test_refuses_types_that_collectives_cannot_sum(value):
    with pytest.raises(ConfigError, match="reduce_dtype"):
        OProjConfig(reduce_dtype=value)


def test_takes_one_glob_as_well_as_several():
    assert OProjConfig(include="model.layers.*").include == ("model.layers.*",)
    assert OProjConfig(exclude=["a", "b"]).exclude == ("a", "b")


def test_refuses_an_operator_without_its_library():
    with pytest.raises(ConfigError, match="'attention'"):
        OProjConfig(attention_ops="attention")


def test_takes_a_capture_plan():
    plan = plan_capture(StepBound(max_num_seqs=8, max_num_batched_tokens=64))
    assert OProjConfig(plan=plan).plan is plan


def test_cannot_be_changed_after_it_was_checked():
    with pytest.raises(ValueError, match="frozen"):
        OProjConfig().timeout = -1


def test_refuses_options_that_are_no_mapping():
    with pytest.raises(ConfigError, match="list"):
        OProjConfig.from_options([("timeout", 1)])


@pytest.mark.parametrize("value", ["mc3", True, ""])
def test_refuses_an_unknown_way_to_fuse(value):
    with pytest.raises(ConfigError, match=r"fuse.*'mc2'"):
        OProjConfig(fuse=value)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"timeout": "soon"}, "option timeout = 'soon': required: a number"),
        ({"capacity": 0}, "option capacity = 0: required: at least 1"),
        ({"inner_backend": 3}, "option inner_backend = 3: required: text or a callable"),
        ({"include": ["a", 3]}, "option include[1] = 3: required: text"),
        ({"fuse": "mc3"}, "option fuse = 'mc3': required: 'mc2'"),
    ],
)
def test_says_what_is_required_in_words_of_its_own(option, words):
    with pytest.raises(ConfigError) as refused:
        OProjConfig(**option)
    assert str(refused.value) == words


def test_only_the_output_projections_are_on_by_default():
    config = OProjConfig()
    assert config.sizes == {"oproj": "auto", "mlp": 0, "lmhead": 0, "embedding": 0}
    assert config.roles == ("oproj",)


def test_takes_a_size_for_each_role():
    config = OProjConfig(mlp_tensor_parallel_size=2, lmhead_tensor_parallel_size="auto")
    assert config.sizes == {"oproj": "auto", "mlp": 2, "lmhead": "auto", "embedding": 0}


def test_takes_all_sizes_in_the_spelling_of_vllm_ascend_where_a_missing_one_is_off():
    config = OProjConfig(finegrained_tp_config={"lmhead_tensor_parallel_size": "4"})
    assert config.sizes == {"oproj": 0, "mlp": 0, "lmhead": 4, "embedding": 0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"finegrained_tp_config": {"mlp_tensor_parallel_size": 2}, "mlp_tensor_parallel_size": 2},
            "too: leave",
        ),
        ({"finegrained_tp_config": {"mlp_tp_size": 2}}, "did you mean 'mlp_tensor_parallel_size'"),
        ({"finegrained_tp_config": 8}, "required: a mapping"),
        ({"finegrained_tp_config": {"mlp_tensor_parallel_size": -1}}, "mlp_tensor_parallel_size = -1"),
        ({"include": {"mpl": "layers.*"}}, "roles as keys, not 'mpl': did you mean 'mlp'"),
        ({"expected_sites": {"head": 1}}, "roles as keys, not 'head'"),
    ],
)
def test_refuses_sizes_and_roles_that_it_cannot_read(options, message):
    with pytest.raises(ConfigError, match=message):
        OProjConfig(**options)


def test_takes_globs_for_all_roles_or_for_one():
    assert OProjConfig(include="layers.*").globs("mlp") == (("layers.*",), ())
    config = OProjConfig(exclude={"mlp": "layers.0.*"}, expected_sites={"mlp": 3})
    assert config.globs("mlp") == ((), ("layers.0.*",))
    assert config.globs("oproj") == ((), ())
