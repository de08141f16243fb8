"""A small checkpoint, and a model of it without values."""

import pytest
import torch
from safetensors.torch import save_file

from tests.support.models import decoder


@pytest.fixture
def full():
    return decoder(layers=2)


@pytest.fixture
def empty():
    with torch.device("meta"):
        return decoder(layers=2)


@pytest.fixture
def folder(tmp_path, full):
    save_file(full.state_dict(), tmp_path / "model.safetensors")
    return tmp_path
