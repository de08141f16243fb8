"""Captures graphs the ways a user does, and tiny models to capture."""

from dataclasses import dataclass
from itertools import chain

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from oproj_pass.passes.sites.attention_output import NearMiss, Projection, find_projections


@dataclass
class Found:
    """What the search found in each graph of a model."""

    graphs: list[tuple[list[Projection], list[NearMiss]]]

    @property
    def sites(self) -> list[Projection]:
        return list(chain.from_iterable(sites for sites, _ in self.graphs))

    @property
    def misses(self) -> list[NearMiss]:
        return list(chain.from_iterable(misses for _, misses in self.graphs))

    @property
    def paths(self) -> list[str]:
        return [site.path for site in self.sites]

    @property
    def missed(self) -> dict[str, str]:
        return {miss.path: miss.reason for miss in self.misses}


def search_dynamo(model, *args, search=None, **inputs) -> Found:
    """Search while Dynamo still holds the parameters, as a backend does."""
    found = Found([])

    def backend(gm: GraphModule, example_inputs):
        found.graphs.append(find_projections(gm, **(search or {})))
        return gm

    with torch.no_grad():
        torch.compile(model.eval(), backend=backend)(*args, **inputs)
    return found


def search_aot(model, *args, **inputs) -> Found:
    """Search the ATen graphs that a compiler behind AOTAutograd receives: no input has a name."""
    found = Found([])

    def compiler(gm: GraphModule, example_inputs):
        found.graphs.append(find_projections(gm))
        return gm

    with torch.no_grad():
        torch.compile(model.eval(), backend=aot_autograd(fw_compiler=compiler))(*args, **inputs)
    return found


def search_export(model, *args, decompose=False, **inputs) -> Found:
    """Search an exported program, as it comes or decomposed to core ATen."""
    with torch.no_grad():
        program = torch.export.export(model.eval(), args, inputs)
        program = program.run_decompositions() if decompose else program
    parameters = program.graph_signature.inputs_to_parameters
    return Found([find_projections(program.graph_module, parameters=parameters)])


def search_decomposed(model, *args, **inputs) -> Found:
    return search_export(model, *args, decompose=True, **inputs)


@pytest.fixture
def search():
    return search_dynamo


@pytest.fixture(params=[search_aot, search_export, search_decomposed], ids=["aot", "export", "decomposed"])
def search_aten(request):
    return request.param
