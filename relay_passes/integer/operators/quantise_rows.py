"""`integer.quantise_rows`: to 8 bits, by the largest magnitude of each row."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec import row_scale
from ..checks import check_bounds
from ..domain import Domain, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class QuantiseRows(Operator):
    """``clamp(round(127 x / m) + zero_point, low, high)``, m being the magnitude of the row.

    Parameters
    ----------
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8 or uint8.
    zero_point : int
        Added after the division.
    """

    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OP = "integer.quantise_rows"
    OPERANDS = (Operand("x", NARROW, "... C"), Operand("magnitude", ("int32",), "... 1"))
    RESULT = "... C"
    TRAITS = Traits(per_token=True, offsets=True, takes_epilogue=False, joins_rows=True)

    def __post_init__(self) -> None:
        check_bounds(self, ("int8", "uint8"))

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """The reciprocal of each row, then its entries."""
        x, magnitude = operands["x"], operands["magnitude"]
        rows, channels = x.shape
        largest = domain.define(
            "row_magnitude",
            (rows,),
            lambda row: row_scale.bounded_magnitude(magnitude[row, 0]),
            "int32",
        )
        shift = domain.define(
            "row_shift", (rows,), lambda row: row_scale.normalising_shift(largest[row]), "int32"
        )
        factor = domain.define(
            "row_reciprocal",
            (rows,),
            lambda row: row_scale.reciprocal(largest[row], shift[row]),
            "int32",
        )
        return domain.define(
            "quantised",
            (rows, channels),
            lambda row, channel: row_scale.quantise(
                x[row, channel],
                largest[row],
                shift[row],
                factor[row],
                self.zero_point,
                self.low,
                self.high,
            ),
            self.dtype,
        )
