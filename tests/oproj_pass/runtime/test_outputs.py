"""Results lose their padding in the declared dimension, and nowhere else."""

import pytest
import torch

from oproj_pass.errors import ConfigError


def several(x):
    return {"hidden": 2 * x, "by_column": (x.t(), x.new_ones(8)), "note": "text"}


def test_trims_each_tensor_in_its_own_dimension(serving, batch):
    runner = serving(several, output_rows=[0, 1, None, None])
    result = runner.step({"x": batch(3)})
    assert torch.equal(result["hidden"], 2 * batch(3))
    assert torch.equal(result["by_column"][0], batch(3).t())
    assert result["by_column"][1].shape == (8,)
    assert result["note"] == "text"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (0, r"output 1 has shape \(3, 16\) when 16 rows are captured"),
        ([0, 1], "`output_rows` has 2 entries, the result 4 values"),
        ([0, 1, 1, None], "output 2 has shape"),
    ],
)
def test_refuses_at_capture_a_result_of_another_layout(serving, rows, message):
    with pytest.raises(ConfigError, match=message):
        serving(several, output_rows=rows)


def test_the_padding_rows_of_a_wrong_declaration_would_show(serving, batch):
    runner = serving(several, output_rows=[None, None, None, None])
    assert runner.step({"x": batch(3)})["hidden"].shape[0] == 4
