"""The time of one GEMM on a machine: from its table, else from what it reads, writes and multiplies."""

from dataclasses import dataclass

from oproj_pass.advisor.figures import Basis, Range
from oproj_pass.advisor.interpolate import interpolate
from oproj_pass.advisor.profile import ANY_FRAMEWORK, GemmTable, Profile

__all__ = ["Product", "product_us"]


@dataclass(frozen=True)
class Product:
    """One GEMM ``[m, k] @ [k, n]``; bytes of one weight, one activation and one result element.

    ``kind``: what tables and peaks are listed by: ``8bit``, ``8bit_block`` (a scale a block), ``16bit`` or
    ``32bit``.
    """

    m: int
    n: int
    k: int
    weight_itemsize: float
    input_itemsize: int
    output_itemsize: int
    kind: str

    @property
    def weight_nbytes(self) -> float:
        """Bytes of weights that it reads."""
        return self.n * self.k * self.weight_itemsize

    @property
    def nbytes(self) -> float:
        """Bytes that it reads and writes."""
        rows = self.m * (self.k * self.input_itemsize + self.n * self.output_itemsize)
        return self.weight_nbytes + rows


def product_us(profile: Profile, product: Product, framework: str) -> tuple[Range, Basis]:
    """Microseconds of a GEMM, and whether a measured table or the roofline says so."""
    wanted = (framework, ANY_FRAMEWORK)
    fitting = [table for table in profile.gemms if table.kind == product.kind and table.framework in wanted]
    table = next(iter(fitting), None)
    if table is not None:
        return Range.within(_from_table(table, product), table.error), Basis.MEASURED
    return _roofline(profile, product), Basis.PREDICTED


def _from_table(table: GemmTable, product: Product) -> float:
    return interpolate([table.m, table.n, table.k], table.us, [product.m, product.n, product.k])


def _roofline(profile: Profile, product: Product) -> Range:
    bandwidth = profile.memory_efficiency.range * (profile.memory_gbs.value * 1e3)  # bytes a microsecond
    memory = Range.exact(product.nbytes) / bandwidth
    peak = profile.tflops.get(product.kind.removesuffix("_block")) or profile.tflops["16bit"]
    compute = 2 * product.m * product.n * product.k / (peak.value * 1e6)
    bound = memory if memory.value >= compute else Range.exact(compute)
    return profile.gemm_us.range + bound
