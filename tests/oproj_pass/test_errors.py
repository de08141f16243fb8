"""Every error is itself: pickled, copied, sent to another process, raised through Dynamo."""

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch

from oproj_pass import errors
from oproj_pass.backend.dynamo_errors import errors_as_they_are
from tests.support.models import decoder, rows

KINDS = [getattr(errors, name) for name in errors.__all__]
WORDS = "layers.0.o_proj: some words"


def plain(kind):
    return kind(WORDS)


def through_dynamo(kind=errors.ConfigError):
    """The error as it is raised in a Dynamo backend."""
    try:
        with errors_as_they_are():
            raise kind(WORDS)
    except errors.OProjError as error:
        error.add_note("on rank 1")
        return error


def raise_in_pool():
    raise through_dynamo()


@pytest.mark.parametrize("kind", KINDS, ids=errors.__all__)
@pytest.mark.parametrize("made", [plain, through_dynamo])
@pytest.mark.parametrize(
    "copied",
    [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deep"],
)
def test_a_copy_is_the_plain_error(kind, made, copied):
    error = made(kind)
    assert isinstance(error, kind)
    again = copied(error)
    assert type(again) is kind
    assert str(again) == WORDS
    assert getattr(again, "__notes__", []) == getattr(error, "__notes__", [])


def test_a_class_made_for_one_error_cannot_be_pickled():
    """The negative control."""
    disguised = type("ConfigError", (errors.ConfigError,), {"__module__": errors.__name__})
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(disguised(WORDS))


def test_leaves_a_process_pool():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        future = pool.submit(raise_in_pool)
        with pytest.raises(errors.ConfigError, match="some words") as raised:
            future.result(timeout=120)
    assert type(raised.value) is errors.ConfigError


def test_keeps_its_cause():
    with pytest.raises(errors.GroupMismatchError) as raised, errors_as_they_are():
        raise errors.GroupMismatchError(WORDS) from OSError("lost")
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.parametrize("suppress", [False, True], ids=["raise", "suppress_errors"])
@pytest.mark.parametrize("fullgraph", [False, True], ids=["breaks", "fullgraph"])
def test_reaches_the_caller_of_a_compiled_model(suppress, fullgraph):
    options = {"oproj_tensor_parallel_size": 2}
    step = torch.compile(decoder(layers=1), backend="oproj_npu", options=options, fullgraph=fullgraph)
    x = rows(3, 32)
    with torch._dynamo.config.patch(suppress_errors=suppress), pytest.raises(errors.ConfigError) as raised:
        step(x)
    text = str(raised.value)
    assert text.startswith("oproj_tensor_parallel_size = 2 needs a process group")
    assert text.endswith("leave the size at 'auto'.")
    assert str(pickle.loads(pickle.dumps(raised.value))) == text
