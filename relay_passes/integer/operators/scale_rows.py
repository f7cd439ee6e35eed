"""`integer.scale_rows`: sums of products, times the magnitude of the row that was multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec import row_scale
from ..checks import check_attribute
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator, per_channel
from ..traits import Traits

MOST_SHIFTED = 16


@dataclass(frozen=True)
class ScaleRows(Operator):
    """``floor(x m / 2^shift) + bias``, m being the magnitude of the row, clamped to [1, 2^15).

    Parameters
    ----------
    shift : int
        0..16.
    """

    shift: int

    OP = "integer.scale_rows"
    OPERANDS = (
        Operand("x", ("int32",), "... C"),
        Operand("magnitude", ("int32",), "... 1"),
        Operand("bias", ("int32",), "1|C"),
    )
    RESULT = "... C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True, merges=True)

    def __post_init__(self) -> None:
        check_attribute(self, "shift", 0, MOST_SHIFTED)

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x, magnitude, bias = (operands[name] for name in ("x", "magnitude", "bias"))

        def entry(row: Index, channel: Index) -> Entry:
            # A row of one may be its own magnitude, and is then read as one value: TVM matches no
            # region that is read both at 0 and at a variable.
            m = row_scale.bounded_magnitude(magnitude[row, channel if x.shape[-1] == 1 else 0])
            return row_scale.restored(x[row, channel], m, self.shift, per_channel(bias, channel))

        return domain.define("scaled", x.shape, entry, self.dtype)
