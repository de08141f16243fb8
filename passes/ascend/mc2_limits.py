"""What each generation of Ascend chips allows of ``npu_mm_reduce_scatter_base``, as a table.

Decides whether one product may be fused with the reduce-scatter that follows, and says why not. Nothing else
does: meta kernels check no limit, and the graph converters check types but neither the chip nor its software.
Source: the operator's documentation in torch_npu 2.13 and in op-plugin, and CANN's of
``aclnnMatmulReduceScatter``.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import SymInt

DTYPES = (torch.float16, torch.bfloat16)
FEATURES = range(256, 65535)
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(RC)?(\d+)")


@dataclass(frozen=True)
class Generation:
    """The limits of one generation of chips.

    ``soc``: matches its names, as ``torch.npu.get_device_name()`` spells them. ``cann``: the oldest release
    that has the operator. ``single_group``: all fused communication operators of a model must share one
    communicator. ``max_nbytes``: of the product that is reduced.
    """

    name: str
    soc: re.Pattern[str]
    world_sizes: tuple[int, ...]
    cann: str
    single_group: bool = False
    max_nbytes: int | None = None


GENERATIONS = (
    # Ascend910A and a bare Ascend910B are the first generation, which has no such operator.
    Generation("Atlas A2", re.compile(r"Ascend910B\d"), (2, 4, 8), "8.0.RC2", single_group=True),
    Generation("Atlas A3", re.compile(r"Ascend910_93"), (2, 4, 8, 16), "8.0.RC2"),
    Generation(
        "Ascend 950",
        re.compile(r"Ascend950|Ascend910_95"),
        (2, 4, 8, 16, 32, 64),
        "9.0.0",
        max_nbytes=16 * 2**28,
    ),
)


@dataclass(frozen=True)
class Device:
    """The chip and its software: ``torch.npu.get_device_name()`` and CANN's version, ``""`` when unknown."""

    soc: str
    cann: str


@dataclass(frozen=True)
class Product:
    """A product [rows, in_features] @ [in_features, out_features] whose rows ``world_size`` ranks reduce.

    ``other_groups``: communicators of other fused operators in the graph.
    """

    world_size: int
    rows: int | SymInt
    in_features: int
    out_features: int
    input_dtype: torch.dtype
    weight_dtype: torch.dtype
    contiguous_input: bool = True
    other_groups: frozenset[str] = frozenset()


def refusal(product: Product, device: Device) -> str | None:
    """The first limit that the product violates on the device, in words; None if it may be fused."""
    generation = next((known for known in GENERATIONS if known.soc.match(device.soc)), None)
    if generation is None:
        known = ", ".join(generation.name for generation in GENERATIONS)
        return f"the chip is {device.soc or 'unknown'}, and limits are known for {known} only"
    return next(_violations(product, generation, device.cann), None)


def _violations(product: Product, generation: Generation, cann: str) -> Iterator[str]:
    name, size = generation.name, product.world_size
    found, oldest = release_key(cann), release_key(generation.cann)
    if found is None or oldest is None or found < oldest:
        yield f"{name} needs CANN {generation.cann} or newer, found {cann or 'no version'}"
    if size not in generation.world_sizes:
        yield f"{name} fuses over {_listed(generation.world_sizes)} ranks, not over {size}"
    if product.input_dtype not in DTYPES or product.weight_dtype != product.input_dtype:
        yield (
            "its input and weight must both be float16 or both bfloat16, "
            f"found {_dtype(product.input_dtype)} and {_dtype(product.weight_dtype)}"
        )
    if product.in_features not in FEATURES:
        yield (
            f"a rank's part of K must lie in [{FEATURES.start}, {FEATURES.stop}), "
            f"found {product.in_features} input features"
        )
    if isinstance(product.rows, int) and product.rows % size:
        yield f"its {product.rows} rows cannot be divided over {size} ranks"
    if not product.contiguous_input:
        yield "its input is not contiguous"
    if generation.single_group and product.other_groups:
        yield (
            f"{name} runs all fused communication of a model over one communicator, and the graph uses "
            f"{_listed(sorted(product.other_groups))} too"
        )
    if generation.max_nbytes is not None and (nbytes := _nbytes(product)) > generation.max_nbytes:
        yield f"{name} reduces up to {generation.max_nbytes >> 20} MiB at once, found {nbytes >> 20} MiB"


def release_key(cann: str) -> tuple[int, ...] | None:
    """Orders CANN's releases, a final one after its candidates; None for what is no version.

    >>> release_key("8.0.RC2") < release_key("8.0.RC3") < release_key("8.0.0") < release_key("8.1.RC1")
    True
    """
    match = _RELEASE.match(cann)
    if match is None:
        return None
    major, minor, candidate, number = match.groups()
    return int(major), int(minor), 0 if candidate else 1, int(number)


def _nbytes(product: Product) -> int:
    rows = product.rows if isinstance(product.rows, int) else 0
    return rows * product.out_features * product.input_dtype.itemsize


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
