"""The sites of a model as the advisor counts them: the bytes of each, and the shape its time follows from.

Takes the rows of an explain report; a scheme says how their weights are stored where the model was built
without its quantisation.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from oproj_pass.advisor.workload import Shape, kind_of
from oproj_pass.errors import ConfigError
from oproj_pass.explanation.quantization_config import DTYPES, float8_weight, stated_quantization
from oproj_pass.explanation.report import ProjectionRow
from oproj_pass.explanation.stored import StoredWeight

__all__ = ["SCHEMES", "Scheme", "Site", "merged_shapes", "scheme_of", "shape_in_config", "sites_of"]


@dataclass(frozen=True)
class Scheme:
    """A scheme of 8-bit weights and activations: how its ``weight`` is stored, its products' ``kind``."""

    name: str
    kind: str
    weight: StoredWeight

    @property
    def itemsize(self) -> float:
        """Bytes of an element."""
        return self.weight.bits / 8

    @property
    def block(self) -> int:
        """Features of K that share a scale and may not be parted; 1 where every rank keeps all scales."""
        return self.weight.unit


SCHEMES: Mapping[str, Scheme] = {
    "w8a8": Scheme("w8a8", "8bit", DTYPES["int8"]),
    "fp8": Scheme("fp8", "8bit", DTYPES["fp8"]),
    "fp8_block": Scheme("fp8_block", "8bit_block", float8_weight((128, 128))),
}
"""Schemes by name."""


@dataclass(frozen=True)
class Site:
    """One weight that sharding cuts.

    ``layer``: the module path up to its layer's number. ``nbytes``: all that is cut. ``unit``: features of K
    that stay together. ``is_shared``: the bytes count at another site.
    """

    path: str
    shape: Shape
    nbytes: int
    scheme: str
    unit: int = 1
    is_shared: bool = False

    @property
    def layer(self) -> str:
        """`model.layers.7` of `model.layers.7.self_attn.o_proj`."""
        parts = self.path.split(".")
        index = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 1)
        return ".".join(parts[: index + 1])

    def fits(self, size: int) -> bool:
        """Whether K can be split over ``size`` ranks."""
        parts = self.shape.in_features // self.unit if self.shape.in_features % self.unit == 0 else 1
        return parts % size == 0

    def saved_nbytes(self, size: int) -> int:
        """Bytes freed on each of ``size`` ranks."""
        return 0 if self.is_shared else self.nbytes - self.nbytes // size


def sites_of(rows: Iterable[ProjectionRow], scheme: Scheme | None = None) -> list[Site]:
    """The sites behind an explain report's rows, stored by ``scheme`` where that is given."""
    return [_site(row, scheme) for row in rows]


def merged_shapes(sites: Iterable[Site]) -> list[Shape]:
    """The shapes of the sites, equal ones as one."""
    counts: Counter[Shape] = Counter()
    for site in sites:
        counts[replace(site.shape, count=1)] += site.shape.count
    return [replace(shape, count=count) for shape, count in counts.items()]


def scheme_of(config: Mapping[str, Any]) -> Scheme | None:
    """The scheme that a config's ``quantization_config`` states; None for unquantised weights.

    Raises ``ConfigError`` for one that is not among ``SCHEMES``: a wrong guess would be a wrong number.
    """
    quantisation = stated_quantization(config)
    if not quantisation:
        return None
    method = str(quantisation.get("quant_method", "")).lower()
    if method == "fp8":
        block = quantisation.get("weight_block_size")
        return replace(SCHEMES["fp8_block"], weight=float8_weight(block)) if block else SCHEMES["fp8"]
    if method in ("ascend", "w8a8", "modelslim"):
        return SCHEMES["w8a8"]
    raise ConfigError(
        f"quantization_config: quant_method = {method!r} is not one whose bytes are known here. "
        f"Say how the weights are stored: --scheme {', '.join(SCHEMES)} or unquantised"
    )


def shape_in_config(
    config: Mapping[str, Any], itemsize: int, out_features: int, in_features: int, layers: int
) -> Shape:
    """The shape of the ``layers`` projections [H, K] of a model that is not built yet.

    ``config``: the model's, which says how weights are stored; ``itemsize``: bytes of its own type. Raises
    ``ConfigError`` for a quantisation whose bytes are not known.
    """
    scheme = scheme_of(config)
    stored = out_features * in_features * itemsize
    if scheme is not None:
        stored = scheme.weight.nbytes(out_features, in_features)
    return Shape(
        role="oproj",
        out_features=out_features,
        in_features=in_features,
        weight_itemsize=stored / (out_features * in_features),
        input_itemsize=itemsize if scheme is None else 1,
        partial_itemsize=itemsize,
        kind=kind_of(itemsize) if scheme is None else scheme.kind,
        count=layers,
    )


def _site(row: ProjectionRow, scheme: Scheme | None) -> Site:
    in_features = row.token.in_features  # of two steps those of the first, which is what is exchanged
    elements = row.out_features * in_features
    nbytes = row.nbytes if scheme is None else _nbytes(row, scheme)
    itemsize = nbytes / elements
    return Site(
        path=row.path,
        shape=Shape(
            role="oproj",
            out_features=row.out_features,
            in_features=in_features,
            weight_itemsize=itemsize,
            input_itemsize=row.input_itemsize if scheme is None else 1,
            partial_itemsize=row.partial_itemsize,
            kind=kind_of(row.input_itemsize) if scheme is None else scheme.kind,
            count=row.calls,
        ),
        nbytes=nbytes,
        scheme=row.scheme if scheme is None else scheme.name,
        unit=row.unit if scheme is None else scheme.block,
        is_shared=row.shares_weight_with is not None,
    )


def _nbytes(row: ProjectionRow, scheme: Scheme) -> int:
    """Bytes of the weight, and of the matrices of groups in front of it."""
    last = scheme.weight.nbytes(row.out_features, row.in_features)
    if row.brought is None:
        return last
    return last + scheme.weight.nbytes(row.in_features, row.brought // row.parts)
