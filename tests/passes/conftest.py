"""Captures graphs the ways a user does, and tiny models to capture."""

from dataclasses import dataclass
from functools import partial
from itertools import chain

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from oproj_pass.passes import ROLES, Globs, NearMiss, Site, find_projections, find_roles


@dataclass
class Found:
    """What the search found in each graph of a model."""

    graphs: list[tuple[list[Site], list[NearMiss]]]

    @property
    def sites(self) -> list[Site]:
        return list(chain.from_iterable(sites for sites, _ in self.graphs))

    @property
    def misses(self) -> list[NearMiss]:
        return list(chain.from_iterable(misses for _, misses in self.graphs))

    def of_role(self, role: str) -> "Found":
        def of(items):
            return [item for item in items if item.role == role]

        return Found([(of(sites), of(misses)) for sites, misses in self.graphs])

    @property
    def paths(self) -> list[str]:
        return [site.path for site in self.sites]

    @property
    def missed(self) -> dict[str, str]:
        return {miss.path: miss.reason for miss in self.misses}


def search_dynamo(model, *args, find=find_projections, search=None, run=True, **inputs) -> Found:
    """Search while Dynamo still holds the parameters, as a backend does."""
    found = Found([])

    def backend(gm: GraphModule, example_inputs):
        found.graphs.append(find(gm, **(search or {})))
        return gm if run else lambda *inputs: inputs

    with torch.no_grad():
        torch.compile(model.eval(), backend=backend)(*args, **inputs)
    return found


def search_aot(model, *args, find=find_projections, **inputs) -> tuple[Found]:
    """Search the ATen graphs that a compiler behind AOTAutograd receives: no input has a name."""
    found = Found([])

    def compiler(gm: GraphModule, example_inputs):
        found.graphs.append(find(gm))
        return gm

    with torch.no_grad():
        torch.compile(model.eval(), backend=aot_autograd(fw_compiler=compiler))(*args, **inputs)
    return (found,)


def search_exported(model, *args, find=find_projections, **inputs) -> tuple[Found, Found]:
    """Search an exported program, as it comes and decomposed to core ATen."""

    def search(program):
        parameters = program.graph_signature.inputs_to_parameters
        return Found([find(program.graph_module, parameters=parameters)])

    with torch.no_grad():
        program = torch.export.export(model.eval(), args, inputs)
        return search(program), search(program.run_decompositions())


def find_all(gm, roles=tuple(ROLES), **options):
    return find_roles(gm, dict.fromkeys(roles, Globs()), **options)


_ATEN = {"aot": search_aot, "exported": search_exported}


@pytest.fixture
def search():
    return search_dynamo


@pytest.fixture(params=_ATEN.values(), ids=_ATEN.keys())
def search_aten(request):
    """Searches every ATen graph that one way of capturing makes of a model."""
    return request.param


@pytest.fixture
def search_roles():
    """Searches for every role, or for ``roles``."""

    def search(*args, roles=tuple(ROLES), **inputs):
        return search_dynamo(*args, find=partial(find_all, roles=roles), **inputs)

    return search


@pytest.fixture(params=_ATEN.values(), ids=_ATEN.keys())
def search_roles_aten(request):
    return partial(request.param, find=find_all)
