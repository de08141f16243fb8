"""Inputs are padded where they were declared to have rows, and refused where they do not fit."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from oproj_pass.errors import ConfigError
from oproj_pass.runtime.buffers import PersistentInputs

DRAFT = {"ids": 0, "positions": 0, "slots": 0, "mask": 1, "table": None}


def draft(num_tokens, fill=None):
    """A draft step: one input has its rows in dimension 1, and one has none but is 4 long, like the batch."""
    inputs = {
        "ids": torch.arange(1, num_tokens + 1),
        "positions": torch.arange(10, 10 + num_tokens),
        "slots": torch.arange(20, 20 + num_tokens),
        "mask": torch.arange(30, 30 + 3 * num_tokens).view(3, num_tokens),
        "table": torch.arange(4),
    }
    return inputs if fill is None else {name: torch.full_like(value, fill) for name, value in inputs.items()}


@pytest.fixture
def inputs():
    return PersistentInputs(draft(1), DRAFT, {"slots": -1}, [4, 8])


def test_every_row_shaped_input_is_padded_and_no_other(inputs):
    inputs.load(draft(4, fill=99), 4, 4)
    inputs.load(draft(3), 3, 4)
    padded = inputs.arguments(4)
    assert padded["ids"].tolist() == [1, 2, 3, 0]
    assert padded["positions"].tolist() == [10, 11, 12, 0]
    assert padded["slots"].tolist() == [20, 21, 22, -1]
    assert padded["mask"].tolist() == [[30, 31, 32, 0], [33, 34, 35, 0], [36, 37, 38, 0]]
    assert padded["table"].tolist() == [0, 1, 2, 3]


def test_all_sizes_read_the_same_memory_contiguously(inputs):
    small, large = inputs.arguments(4), inputs.arguments(8)
    for name in DRAFT:
        assert small[name].data_ptr() == large[name].data_ptr()
        assert small[name].is_contiguous()
    assert len({value.data_ptr() for value in large.values()}) == len(DRAFT)


def test_loading_leaves_the_callers_tensors_alone(inputs):
    mine = draft(3)
    before = {name: value.clone() for name, value in mine.items()}
    inputs.load(mine, 3, 8)
    assert all(torch.equal(mine[name], before[name]) for name in mine)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": torch.arange(2)}, "different token counts: ids 3, positions 2, slots 3, mask 3"),
        ({"mask": torch.zeros(3, 4, dtype=torch.long)}, "mask 4"),
        (
            {"mask": torch.zeros(4, 3, dtype=torch.long)},
            r"'mask' has shape \(4, 3\), required is \(3, num_tokens\)",
        ),
        (
            {"ids": torch.zeros(3, 1, dtype=torch.long)},
            r"'ids' has shape \(3, 1\), required is \(num_tokens\)",
        ),
        ({"ids": torch.zeros(3)}, "'ids' is torch.float32, captured with torch.int64"),
        ({"ids": [1, 2, 3]}, "'ids' is a list, captured as a tensor"),
        (
            {"table": torch.arange(5)},
            "'table' has shape .5,., captured with .4,., and is declared to have no row",
        ),
        ({"more": 1}, "bring the same names"),
    ],
)
def test_refuses_inputs_that_do_not_fit(inputs, change, message):
    with pytest.raises(ConfigError, match=message):
        inputs.count_tokens({**draft(3), **change})


@pytest.mark.parametrize(
    ("rows", "pad", "message"),
    [
        ({**DRAFT, "mask": None, "ids": None}, {"ids": 1}, "`pad` gives a value for 'ids'"),
        ({"ids": 0}, {}, "tensor input 'positions' of shape .1,. is not declared"),
        ({**DRAFT, "other": 0}, {}, "declares 'other', which is not a tensor"),
        ({**DRAFT, "ids": 1}, {}, "dimension 1 of 'ids'"),
        (dict.fromkeys(DRAFT), {}, "declares no input with rows"),
    ],
)
def test_refuses_a_declaration_that_does_not_fit(rows, pad, message):
    with pytest.raises(ConfigError, match=message):
        PersistentInputs(draft(1), rows, pad, [4])


def test_negative_dimensions_count_from_the_end():
    inputs = PersistentInputs(draft(1), {**DRAFT, "mask": -1}, {}, [4])
    inputs.load(draft(2), 2, 4)
    assert inputs.arguments(4)["mask"][:, 2:].eq(0).all()


def test_a_changed_constant_is_named():
    inputs = PersistentInputs({"x": torch.zeros(1), "scale": 1}, {"x": 0}, {}, [4])
    assert inputs.changed_constant({"x": torch.zeros(1), "scale": 1}) is None
    assert "input 'scale' is 2" in inputs.changed_constant({"x": torch.zeros(1), "scale": 2})
    assert "input 'scale' is True" in inputs.changed_constant({"x": torch.zeros(1), "scale": True})


def test_a_counter_is_to_be_passed_as_a_tensor():
    inputs = PersistentInputs({"x": torch.zeros(1), "step": 1}, {"x": 0}, {}, [4])
    changed = inputs.changed_constant({"x": torch.zeros(1), "step": 2})
    assert "Pass it as a tensor" in changed


@dataclass
class Metadata:
    lengths: Any
    name: str = "decode"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ([1, torch.zeros(2)], r"'meta' holds a tensor at \[1\]"),
        ({"a": ({"b": torch.zeros(2)},)}, r"'meta' holds a tensor at \['a'\]\[0\]\['b'\]"),
        (Metadata(torch.zeros(2)), r"'meta' holds a tensor at \.lengths"),
        (np.zeros(2), "'meta' is a numpy array"),
        ([np.zeros(2)], r"'meta' holds a numpy array at \[0\]"),
    ],
)
def test_refuses_tensors_and_arrays_where_no_graph_would_see_them_change(value, found):
    message = rf"input {found}.*an input of its own.*declare it in `rows`"
    with pytest.raises(ConfigError, match=message):
        PersistentInputs({"x": torch.zeros(1), "meta": value}, {"x": 0}, {}, [4])
    inputs = PersistentInputs({"x": torch.zeros(1), "meta": None}, {"x": 0}, {}, [4])
    with pytest.raises(ConfigError, match=message):
        inputs.changed_constant({"x": torch.zeros(1), "meta": value})


@pytest.mark.parametrize("value", [[1, 2], {"a": (1, None)}, Metadata((1, 2)), np.float32(2), "text"])
def test_containers_of_plain_values_are_constants(value):
    inputs = PersistentInputs({"x": torch.zeros(1), "meta": value}, {"x": 0}, {}, [4])
    assert inputs.changed_constant({"x": torch.zeros(1), "meta": copy.deepcopy(value)}) is None


def test_a_constant_that_gains_a_tensor_is_refused_by_name():
    inputs = PersistentInputs({"x": torch.zeros(1), "meta": [1]}, {"x": 0}, {}, [4])
    with pytest.raises(ConfigError, match="'meta' holds a tensor"):
        inputs.changed_constant({"x": torch.zeros(1), "meta": [torch.zeros(2)]})
