"""The matrix products of a kernel, found by what they read.

A matrix product is a sum of products of two loads, the second of which is of an operand that is
packed for a dot-product instruction: with two axes more than the result has.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, tirx

from .stages import NotElementwise, StageDefinition, StageGraph, loads_of


@dataclass(frozen=True)
class MatrixProduct:
    """Sums ``C[..., m, n] += A[..., m, k] * B[...]`` whose operand B is packed.

    Its indices end with ``n // lanes, k // depth, n % lanes, k % depth``.

    Attributes
    ----------
    stage
        The block.
    lhs, rhs
        The stages that write A and B; None where they are parameters of the kernel.
    """

    stage: StageDefinition
    lhs: StageDefinition | None
    rhs: StageDefinition | None

    @property
    def is_widened(self) -> bool:
        """Whether the kernel widens half bytes to B, with scales: two loads."""
        return self.rhs is not None and len(loads_of(self.rhs.value)) > 1

    @property
    def name(self) -> str:
        """Name of the block."""
        return self.stage.name

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns and depth, padded."""
        rows, columns = self.stage.extents[-2:]
        return rows, columns, self.stage.reduced_extents[0]


def matrix_products(graph: StageGraph) -> list[MatrixProduct]:
    """Find the matrix products of a kernel, in program order."""
    products = []
    for stage in graph.stages.values():
        factors = _factors(stage)
        if factors is not None:
            lhs, rhs = (graph.producer(load.source) for load in factors)
            products.append(MatrixProduct(stage, lhs, rhs))
    return products


def linear_products(func: tirx.PrimFunc) -> list[MatrixProduct]:
    """The products of a kernel that has them of the same rows and columns; none of any other.

    Where there are several, they multiply the same with runs of one weight.
    """
    try:
        products = matrix_products(StageGraph(func))
    except NotElementwise:
        return []
    alike = len({product.stage.extents for product in products}) == 1
    return products if alike and len(products[0].stage.axes) == 2 else []


def linear_product(func: tirx.PrimFunc) -> MatrixProduct | None:
    """One of `linear_products`; None of a kernel without."""
    return next(iter(linear_products(func)), None)


def _factors(stage: StageDefinition) -> tuple[ir.TensorLoad, ir.TensorLoad] | None:
    if stage.combine != "sum" or len(stage.reduced) != 1 or not isinstance(stage.value, tirx.Mul):
        return None
    lhs, rhs = (
        factor.value if isinstance(factor, tirx.Cast) else factor
        for factor in (stage.value.a, stage.value.b)
    )
    if not (isinstance(lhs, ir.TensorLoad) and isinstance(rhs, ir.TensorLoad)):
        return None
    return (lhs, rhs) if len(rhs.indices) == len(stage.axes) + 2 else None
