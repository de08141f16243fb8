"""Writes down the graphs that sharding makes of every tested architecture, and compares two such records.

    python -m scripts.record_graphs record DIRECTORY      # in a checkout before a change, and in one after
    python -m scripts.record_graphs compare BEFORE AFTER  # exit status 1, and each diff, where one differs

Every model goes through ``torch.compile(backend="oproj_npu")`` over a group of two ranks without processes,
with static and with symbolic row counts: once as the inner backend receives its graph, once as a compiler
behind AOTAutograd does. Source lines are left out; they say nothing of what is computed.
"""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import rich
import torch
from rich.progress import track
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

import oproj_pass  # noqa: F401  (the backend is its entry point)
from oproj_pass.passes import diff_graphs
from oproj_pass.passes.diff import GraphSnapshot, snapshot
from oproj_pass.passes.diff.graph_snapshot import NodeSnapshot, Ref
from tests.passes.sites import test_zoo, test_zoo_hybrids
from tests.support import models, quantised
from tests.support.fake import fake_world
from tests.support.layouts import LAYOUTS, layout

SIZE = 2
SCHEMES = [
    quantised.W8A8Dynamic, quantised.W8A8Smooth, quantised.W8A8Tensor, quantised.W8A8Static,
    quantised.W8A8Packed, quantised.W8A8DynamicParameters, quantised.IntMM, quantised.ScaledTensor,
    quantised.ScaledStatic, quantised.ScaledRow, quantised.ScaledRowNamed,
]  # fmt: skip
INNER: dict[str, Callable[..., Callable[..., object]]] = {
    "dynamo": lambda keep: keep,
    "aot": lambda keep: aot_autograd(fw_compiler=keep),
}


def cases() -> Iterator[tuple[str, Callable[[], torch.nn.Module], tuple, dict]]:
    """Every model: its name, how to make it, and one step's inputs."""
    ids = torch.arange(6).view(2, 3)
    for number, family in enumerate([*test_zoo.FAMILIES, *test_zoo_hybrids.HYBRIDS]):
        inputs = {"input_ids": ids, "use_cache": False, **getattr(family, "inputs", {})}
        yield f"{number:02d}_{family.config}", family.model, (), inputs
    for kind in SCHEMES:
        rows = (torch.randn(3, 64, dtype=torch.bfloat16),)
        yield f"scheme_{kind.__name__}", lambda kind=kind: quantised.model(kind), rows, {}
    for kind in LAYOUTS:
        make = lambda kind=kind: quantised.Model(layout(kind)).eval()  # noqa: E731
        yield f"layout_{kind.__name__}", make, (torch.randn(3, 64),), {}
    for form in models.PROJECTIONS:
        make = lambda form=form: models.decoder(projection=form)  # noqa: E731
        yield f"form_{form}", make, (torch.randn(3, 32),), {}


def record(directory: Path) -> None:
    """Write one snapshot a graph into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, make, args, kwargs in track(list(cases()), "recording"):
        for inner in INNER if name[0].isalpha() else ["dynamo"]:
            for shapes in ("static", "dynamic"):
                path = directory / f"{name}.{inner}.{shapes}"
                if list(directory.glob(f"{path.name}.*")):  # of a run that was stopped
                    continue
                _record_one(path, make, args, kwargs, INNER[inner], shapes == "dynamic")


def _record_one(
    path: Path,
    make: Callable[[], torch.nn.Module],
    args: tuple,
    kwargs: dict,
    wrap: Callable[..., Callable[..., object]],
    dynamic: bool,
) -> None:
    kept: list[GraphSnapshot] = []

    def keep(gm: GraphModule, example_inputs: object) -> Callable[..., object]:
        kept.append(snapshot(gm))
        return gm.forward

    torch._dynamo.reset()
    options = {
        "oproj_tensor_parallel_size": SIZE,
        "inner_backend": wrap(keep),
        "attention_ops": [quantised.ATTENTION],
    }
    with fake_world(SIZE), torch.no_grad():
        model = make().eval().requires_grad_(False)
        try:
            torch.compile(model, backend="oproj_npu", options=options, dynamic=dynamic)(*args, **kwargs)
        except Exception as error:  # a model without projections, an operator without a kernel
            (path.parent / f"{path.name}.error").write_text(f"{type(error).__name__}\n")
    for number, graph in enumerate(kept):
        GraphSnapshot(tuple(map(_comparable, graph.nodes))).save(path.parent / f"{path.name}.{number}.json")


def _comparable(node: NodeSnapshot) -> NodeSnapshot:
    """Without source line, and with one name for every process group: those are numbered as they are made."""
    args = tuple(part if isinstance(part, Ref) else re.sub(r"'\d+'", "'group'", part) for part in node.args)
    return replace(node, source="", args=args)


def compare(before: Path, after: Path) -> bool:
    """Print what differs; whether nothing does."""
    names = sorted({file.name for folder in (before, after) for file in folder.iterdir()})
    different = [name for name in names if not _same(before / name, after / name)]
    rich.print(f"{len(names)} records, {len(different)} differ")
    return not different


def _same(before: Path, after: Path) -> bool:
    if not (before.exists() and after.exists()):
        rich.print(f"{before.name}: only {'before' if before.exists() else 'after'}")
        return False
    if before.read_text() == after.read_text():
        return True
    rich.print(f"{before.name}:")
    if before.suffix == ".json":
        print(diff_graphs(GraphSnapshot.load(before), GraphSnapshot.load(after)).to_text())  # noqa: T201
    return False


if __name__ == "__main__":
    command, *folders = sys.argv[1:]
    paths = [Path(folder) for folder in folders]
    if command == "record":
        record(*paths)
    elif not compare(*paths):
        sys.exit(1)
