"""A glob of ``include`` or ``exclude`` that matches nothing is said, with the paths that there are."""

import logging
from functools import partial

import pytest
import torch

from tests.support.models import decoder, rows

MODEL = {"model": None}


def run(call, caplog, **options):
    torch._dynamo.reset()
    with caplog.at_level(logging.INFO, logger="oproj_pass"), torch.no_grad():
        compiled = torch.compile(
            call,
            backend="oproj_npu",
            options={"oproj_tensor_parallel_size": 1, "inner_backend": "eager", **options},
        )
        compiled(rows(3, 32))
    return [record for record in caplog.records if "matches no projection" in record.getMessage()]


def held_in_a_dict(x):
    return MODEL["model"](x)


def of_a_model(model, x):
    return model(x)


@pytest.mark.parametrize("holder", ["dict", "partial"])
def test_warns_where_paths_are_not_what_the_glob_supposes(holder, caplog):
    MODEL["model"] = decoder()
    call = held_in_a_dict if holder == "dict" else partial(of_a_model, MODEL["model"])
    (record,) = run(call, caplog, exclude=["layers.1.*"])
    message = record.getMessage()
    if record.levelno != logging.WARNING or "exclude = 'layers.1.*': matches no projection" not in message:
        pytest.fail(message)
    assert "layers.1.attn.o_proj" in message


@pytest.mark.parametrize(
    "options",
    [
        {"exclude": ["layers.1.*"]},
        {"include": ["*.o_proj"]},
        {"include": ["layers.0.*"], "exclude": ["*.1.*"]},
    ],
)
def test_says_nothing_of_globs_that_match(options, caplog):
    assert run(decoder(), caplog, **options) == []


def test_names_the_one_glob_of_several_that_matches_nothing(caplog):
    (record,) = run(decoder(), caplog, include=["layers.*", "blocks.*"])
    assert record.getMessage().startswith("include = 'blocks.*': matches no projection or attention")


def test_a_part_of_a_model_only_notes_what_may_match_in_another_part(caplog):
    found = run(decoder(graph_breaks=True), caplog, exclude=["layers.1.*"])
    assert {record.levelno for record in found} <= {logging.INFO}
