"""Finds what becomes of each attention's projection, graph by graph and run by run.

With graph breaks Dynamo runs layer 0's graph again with layer 1's weights, so a graph says which projections
there are and each run of it whose they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule

from oproj_pass.config import OProjConfig
from oproj_pass.explanation.capture import GraphBreak, capture_graphs, copy_to_run
from oproj_pass.explanation.report import ExplainReport, ProjectionRow
from oproj_pass.passes import NearMiss, Projection, ShardOProj, run_passes
from oproj_pass.passes.gemm import RowScale
from oproj_pass.passes.ops import registered
from oproj_pass.passes.provenance import placeholders, storage_of, value_of
from oproj_pass.passes.stored import is_stored, parameter_paths
from oproj_pass.policy import GraphPolicy
from oproj_pass.report import stored_tensors
from oproj_pass.store import ShardStore


def explain(model: nn.Module, *args: Any, config: Any = None, **kwargs: Any) -> ExplainReport:
    """What ``backend="oproj_npu"`` would do to ``model``, called with ``args`` and ``kwargs``.

    Needs no process group and no weights (the model and its arguments may be on ``meta``), and changes
    nothing: a copy that shares the parameters is captured, under ``no_grad``, and run once as it is captured.

    config: ``OProjConfig`` or its fields; the report shows ``oproj_tensor_parallel_size`` if it is above 1,
        else 2, 4 and 8.

    Raises ``ConfigError`` for wrong options or a model that cannot be copied, ``WeightReleasedError`` for one
    that is already sharded, and whatever the model raises.
    """
    config = OProjConfig.from_options(config)
    module, args, kwargs = copy_to_run(model, args, kwargs)
    search = _Search(module, config)
    breaks = capture_graphs(module, args, kwargs, search)
    return search.report(type(module).__name__, breaks)


class _Search:
    """A Dynamo backend that searches each graph and runs it as it is."""

    def __init__(self, model: nn.Module, config: OProjConfig) -> None:
        self.config = config
        self.names = {id(weight): name for name, weight in stored_tensors(model)}
        self.rows: dict[str, ProjectionRow] = {}
        self.misses: dict[NearMiss, None] = {}
        self.weights: dict[str, int] = {}  # projection's path -> its weight's storage
        self.readers: dict[int, str] = {}  # storage -> the graph input that reads it in full
        self.num_graphs = 0

    def __call__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.num_graphs += 1
        inputs = placeholders(gm)
        sites, misses = self._find(gm, example_inputs)
        rows = [(inputs.index(site.weight), self._row(site)) for site in sites]
        taken = {inputs.index(cut.node) for site in sites for cut in site.slices}
        stored = [is_stored(node) for node in inputs]
        paths = parameter_paths(gm) or {}
        here = [paths.get(node) for node in inputs]

        def run(*args: Any) -> Any:
            names = [self.names.get(id(value)) for value in args]
            for position, row in rows:
                self._add(replace(row, path=_full_path(row.path, here, names)), args[position])
            self.misses.update((replace(m, path=_full_path(m.path, here, names)), None) for m in misses)
            for position, (node, value) in enumerate(zip(inputs, args, strict=True)):
                if stored[position] and position not in taken:
                    self.readers[_storage(value)] = names[position] or node.name
            return gm.forward(*args)

        return run

    def _find(
        self, gm: GraphModule, example_inputs: Sequence[Any]
    ) -> tuple[tuple[Projection, ...], tuple[NearMiss, ...]]:
        """The backend's own search and storage checks; at N = 1 they ask for no group."""
        config = self.config.model_copy(
            update={"oproj_tensor_parallel_size": 1, "expected_sites": None, "plan": None}
        )
        policy = GraphPolicy(
            gm, dict(zip(placeholders(gm), example_inputs, strict=True)), config, ShardStore()
        )
        search = ShardOProj(
            policy,
            include=config.include,
            exclude=config.exclude,
            attention_ops=registered(*config.attention_ops),
        )
        (record,) = run_passes(gm, example_inputs, [search])
        return record.matches, record.near_misses

    def _row(self, site: Projection) -> ProjectionRow:
        product, scales = value_of(site.gemm.node).dtype, site.gemm.row_scales
        reduce_dtype = self.config.reduce_dtype if product.is_floating_point else None
        return ProjectionRow(
            path=site.path,
            gemm=site.gemm.form.name,
            out_features=site.out_features,
            in_features=site.in_features,
            dtype=str(site.dtype).removeprefix("torch."),
            scheme=site.scheme,
            nbytes=site.nbytes,
            input_itemsize=value_of(site.gemm.input).dtype.itemsize,
            partial_itemsize=(reduce_dtype or product).itemsize,
            scale_nbytes=sum(_nbytes_a_row(scale) for scale in scales if scale.features),
            row_scale_nbytes=sum(_nbytes_a_row(scale) for scale in scales if not scale.features),
            unit=site.unit,
        )

    def _add(self, row: ProjectionRow, weight: Tensor) -> None:
        if (known := self.rows.get(row.path)) is not None:
            self.rows[row.path] = replace(known, calls=known.calls + 1)
            return
        storage = _storage(weight)
        owner = next((path for path, other in self.weights.items() if other == storage), None)
        self.rows[row.path] = replace(row, shares_weight_with=owner)
        self.weights[row.path] = storage

    def report(self, model: str, breaks: Sequence[GraphBreak]) -> ExplainReport:
        """Everything found; a weight that any graph reads in full is no projection's."""
        read = {
            path: self.readers[storage] for path, storage in self.weights.items() if storage in self.readers
        }
        misses = [
            NearMiss(
                path, f"has a weight that another graph reads in full (`{reader}`)", self.rows[path].nbytes
            )
            for path, reader in read.items()
        ]
        return ExplainReport(
            model=model,
            oproj_tensor_parallel_size=self.config.oproj_tensor_parallel_size,
            projections=tuple(row for path, row in self.rows.items() if path not in read),
            near_misses=(*self.misses, *misses),
            graph_breaks=tuple(breaks),
            num_graphs=self.num_graphs,
        )


def _nbytes_a_row(scale: RowScale) -> int:
    value = value_of(scale.node)
    return int(value.dtype.itemsize * (value.shape[-1] if scale.features else 1))


def _storage(tensor: Tensor) -> int:
    return int(storage_of(tensor)._cdata)


def _full_path(path: str, here: Sequence[str | None], names: Sequence[str | None]) -> str:
    """The path in the model of the module that a graph calls ``path``.

    A graph names modules from the frame that it was captured from, and one graph serves several layers: the
    names of the parameters below the module, in the graph (``here``) and in the model, tell.
    """
    for parameter, name in zip(here, names, strict=True):
        if parameter and name and parameter.startswith(f"{path}."):
            tail = parameter.removeprefix(path)
            if name.endswith(tail):
                return name.removesuffix(tail)
    return path
