"""Reads what torchair's own converters made of a model: the operators of its GE graph."""

import re
from dataclasses import dataclass

import torch

from tests.ascend.support.decode import decode_step, decoder

LAYOUT = {"Const", "Identity", "Reshape", "Transpose", "StridedSliceV2"}
ATTRIBUTES = ("group", "reduction", "rank_size")
_LABEL = "_user_stream_label"


@dataclass(frozen=True)
class Operator:
    """One GE operator.

    ``inputs``: the names of the operators it reads or waits for; ``waits_for``: those that it only waits for;
    ``shape``: of its first output; ``value``: of a constant; ``stream``: its label, None on the main one.
    """

    type: str
    name: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...] | None
    attributes: dict
    value: list | None
    stream: str | None
    waits_for: tuple[str, ...]


class _Lowered(Exception):
    """Ends a compilation whose graph would run next, on a graph engine that the stub has not."""


def lowered(model, inputs, custom_pass=None, *, dynamic=False):
    """The operators of ``model``'s one GE graph, compiled with ``custom_pass`` in torchair's own hook."""
    import torchair

    config = torchair.CompilerConfig()
    config.post_grad_custom_pre_pass = custom_pass
    backend = torchair.get_npu_backend(compiler_config=config)
    return lower(torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic), inputs)


def lower(compiled, inputs):
    """The operators of the one GE graph that calling ``compiled`` makes, in order; nothing is run."""
    from torchair._ge_concrete_graph.fx2ge_converter import GeConcreteGraph

    graphs = []

    def keep(graph, *args, **kwargs):
        graphs.append([_read(operator) for operator in graph.graph._proto.op])
        raise _Lowered

    finish = GeConcreteGraph.optimize_graph_without_runtime
    GeConcreteGraph.optimize_graph_without_runtime = keep
    try:
        with torch.no_grad():
            compiled(**inputs)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, _Lowered):
            raise
    finally:
        GeConcreteGraph.optimize_graph_without_runtime = finish
    (operators,) = graphs
    return operators


def fake_world():
    """This process as rank 2 of 4."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("cpu:fake,npu:fake", store=FakeStore(), rank=2, world_size=4)


def lower_by_backend(kind, **options):
    """The operators of a decoder's step through ``oproj_npu`` with torchair inside, on rank 2 of 4."""
    fake_world()
    return lower(by_backend(decoder(kind), "npu", **options), decode_step(kind))


def by_backend(model, inner_backend, **options):
    """``model``, to be compiled through ``oproj_npu`` with an Ascend compiler inside."""
    options["inner_backend"] = inner_backend
    return torch.compile(model, backend="oproj_npu", fullgraph=True, dynamic=False, options=options)


def of_type(operators, *types):
    """Those of ``operators`` that have one of the types, in order."""
    return [operator for operator in operators if operator.type in types]


def way_back(operators, end):
    """``end`` and what feeds its first input, that one's, and so on, in order of execution."""
    by_name = {operator.name: operator for operator in operators}
    way = [end]
    while way[-1].inputs and way[-1].inputs[0] in by_name:
        way.append(by_name[way[-1].inputs[0]])
    return way[::-1]


def without_layout(operators):
    """The types of the operators that compute or communicate."""
    return [operator.type for operator in operators if operator.type not in LAYOUT]


def _read(operator):
    values = {name: operator.attr[name] for name in ATTRIBUTES if name in operator.attr}
    return Operator(
        operator.type,
        operator.name,
        tuple(name.rpartition(":")[0] for name in operator.input),
        _shape(operator),
        {name: value.s.decode() or value.i for name, value in values.items()},
        _constant(operator),
        operator.attr[_LABEL].s.decode() if _LABEL in operator.attr else None,
        tuple(name.rpartition(":")[0] for name in operator.input if name.endswith(":-1")),
    )


def _shape(operator):
    """torchair keeps shapes as text: ``Tensor(dtype=torch.bfloat16, shape=torch.Size([12, 64])``."""
    text = operator.output_desc[0].attr["_meta"].s.decode() if operator.output_desc else ""
    sizes = re.search(r"Size\(\[([\d, ]*)\]\)", text)
    return tuple(map(int, filter(None, sizes[1].split(", ")))) if sizes else None


def _constant(operator):
    if operator.type != "Const":
        return None
    text = operator.attr["_readable_value"].s.decode()
    return [int(number) for number in re.findall(r"-?\d+", text)] if text.startswith("[") else text
