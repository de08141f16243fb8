"""One recommendation with its reason; what cannot be answered is refused."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from oproj_pass.advisor import text
from oproj_pass.advisor.advise import advise
from oproj_pass.advisor.kv_cache import read_kv_cache
from oproj_pass.advisor.page import to_html
from oproj_pass.advisor.profile import load_profile
from oproj_pass.advisor.sites import SCHEMES
from oproj_pass.advisor.tables import tables
from oproj_pass.capture import StepBound, plan_capture
from oproj_pass.config import OProjConfig
from oproj_pass.errors import ConfigError
from oproj_pass.explanation.render import format_nbytes
from oproj_pass.passes import NearMiss

MLA = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 128}


@pytest.fixture
def advice(report, setting):
    def build(machine="a2", *, layers=61, scheme="w8a8", sizes=(2, 4, 8), **changed):
        return advise(
            report(layers), load_profile(machine), setting(**changed), sizes=sizes,
            scheme=SCHEMES.get(scheme), cache=read_kv_cache(MLA),
        )  # fmt: skip

    return build


def test_takes_the_n_that_was_measured_as_free_and_not_the_one_that_costs(advice):
    found = advice()
    assert found.recommendation.option.size == 4
    assert "N=8 row would cost +1." in found.recommendation.reason


def test_takes_more_memory_where_a_step_may_cost_more(advice):
    assert advice(max_slowdown_ms=2.0).recommendation.option.size == 8


def test_two_layers_free_less_than_they_take(advice):
    found = advice(layers=2)
    assert found.recommendation.option is None
    assert "frees less than it takes" in found.recommendation.reason


def test_says_what_the_memory_would_cost_where_every_step_is_slower(advice):
    found = advice(batch=256)
    assert found.recommendation.option is None
    assert "costs least a byte" in found.recommendation.reason


def test_a_step_turns_where_it_says(advice):
    option = next(option for option in advice().options if option.size == 4 and option.is_default)
    before, after = (advice(batch=option.turns_at + step) for step in (-1, 0))
    slower = [
        found.step(next(o for o in found.options if o.label == option.label)).difference.value > 0
        for found in (before, after)
    ]
    assert slower == [False, True]


def test_a_size_that_fits_nothing_is_refused_with_the_layer(advice):
    with pytest.raises(
        ConfigError, match=r"fits no size of 3: N = 3 does not divide K = 16384 of model.layers.0"
    ):
        advice(sizes=(3,))


def test_a_size_that_does_not_fit_is_left_out_with_its_reason(advice):
    found = advice(sizes=(3, 4))
    assert {option.size for option in found.options} == {4}
    assert "K = 16384" in found.misfits[3]


def test_a_model_without_projections_is_refused(advice):
    with pytest.raises(ConfigError, match="no output projection"):
        advice(layers=0)


@pytest.mark.parametrize("machine", ["a2", "a3", "a100", "h200"])
def test_names_for_each_size_the_fastest_way_in_which_the_weights_lie_alike(advice, machine):
    """Which a capture plan takes as it was printed."""
    found = advice(machine, max_slowdown_ms=100, captured=(1, 8, 24, 512))
    chosen, by_size = found.recommendation.option, found.recommendation.by_size
    named = json.loads(json.dumps(found.to_dict()))["recommendation"]["strategies"]
    plan = plan_capture(StepBound(512, 8192), sizes=[1, 8, 24, 512], strategies=named)
    for tokens, option in by_size.items():
        alike = [other for other in found.options if other.label.startswith(chosen.label.split(",")[0])]
        assert option.steps[tokens].difference.value == min(o.steps[tokens].difference.value for o in alike)
        assert plan.strategy_of(tokens).named == option.named
    config = OProjConfig(**chosen.backend_options, plan=plan)
    assert config.strategy == chosen.named["strategy"]


def test_says_where_sizes_have_other_ways(advice):
    notes = [*text.notes(advice("a100", max_slowdown_ms=100, captured=(1, 8, 24)))]
    (line,) = [note for note in notes if note.startswith("Fastest by captured size")]
    assert "1: row, exchange; 8: row; 24: row" in line


def test_says_what_vllm_can_be_given(advice):
    found = advice(kv_cache_memory_bytes=10 << 30)
    chosen = found.recommendation.option
    bought = found.bought(chosen)
    assert bought.kv_cache_memory_bytes == (10 << 30) + chosen.memory.net_nbytes
    assert bought.tokens == bought.sequences * 4096 + bought.tokens % 4096


@pytest.mark.parametrize("machine", ["a2", "h200"])
def test_every_form_has_the_same_options_and_says_what_they_stand_on(advice, machine):
    found = advice(machine)
    out = StringIO()
    Console(file=out, width=120).print(text.to_rich(found))
    document, page = json.loads(json.dumps(found.to_dict())), to_html(found)
    for option in found.options:
        assert f"{found.step(option).difference.value:+.2f}" in out.getvalue()
        assert f"{found.step(option).difference.value:+.2f}" in page
    assert len(document["options"]) == len(found.options)
    assert all(
        "predicted" in step["basis"] for option in document["options"] for step in option["steps"].values()
    )
    assert "predicted" in out.getvalue()
    assert all(source["source"] in page.replace("&#x27;", "'") for source in document["sources"][:3])


def printed(found, **console):
    out = StringIO()
    Console(file=out, **console).print(text.to_rich(found), soft_wrap=True)
    return out.getvalue().splitlines()


@pytest.mark.parametrize(("machine", "batch"), [("a2", 24), ("h200", 512), ("cpu", 64)])
def test_a_terminal_of_80_columns_breaks_no_row_and_no_word(advice, machine, batch):
    found = advice(machine, batch=batch, max_slowdown_ms=1e6)
    narrow = printed(found, width=80, force_terminal=True, color_system=None)
    whole = printed(found, width=120)
    assert max(map(len, narrow)) <= 80
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(whole).split())
    assert any(len(line) > 120 for line in whole), "a file keeps each sentence on its line"


def test_memory_is_that_of_the_strategy_that_frees_least(advice):
    found = advice()
    memory = next(table for table in tables(found) if "Memory" in table.title)
    nets = [option.memory.net_nbytes for option in found.options if option.size == 8]
    assert len(set(nets)) > 1
    assert memory.rows[-1][2] == format_nbytes(min(nets))


def test_names_the_published_gains_whose_sign_it_misses(advice):
    found = advice("a2")
    missed = {deviation.point.what for deviation in found.deviations if not deviation.has_right_sign}
    text = " ".join(printed(found, width=120))
    assert missed
    for deviation in found.deviations:
        what = deviation.point.what
        assert (f"Do not trust the sign for {what}: " in text) == (what in missed)


def test_says_itself_why_layers_are_left_alone(advice):
    """`oproj explain` does not look for the rest of the family, and would not say."""
    misses = tuple(
        NearMiss(f"model.layers.{i}.mlp.experts", "holds routed experts", role="mlp") for i in (3, 4, 5)
    )
    lines = printed(replace(advice(), near_misses=misses), width=120)
    assert "Left alone: model.layers.3-5.mlp.experts holds routed experts." in lines


def test_the_page_loads_nothing_and_is_small(advice):
    page = to_html(advice())
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    loaded = page.replace("http://www.w3.org/2000/svg", "")  # the name of a namespace
    assert not any(word in loaded for word in ("<script", "http:", "https:", "url(", "src="))
    assert len(page) < 300_000
