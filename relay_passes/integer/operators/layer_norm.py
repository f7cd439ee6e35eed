"""`integer.layer_norm`: i-layer-norm of an input of 21 bits."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dialect.record import Operand, flattened
from ...spec import layer_norm as norm
from ...spec.layer_norm import LayerNormConstants
from ..checks import check_bounds, check_shift
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class LayerNorm(Operator):
    """i-layer-norm over the last axis: ``clamp((n gain + offset + half) >> shift, low, high)``.

    Parameters
    ----------
    constants : LayerNormConstants
        input_limit, epsilon, reciprocal_bits, normalised_bits.
    shift : int
        Right shift of ``n * gain + offset``.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8, int16 or int32.
    """

    constants: LayerNormConstants = field(metadata=flattened("norm", LayerNormConstants))
    shift: int
    low: int
    high: int
    dtype: str

    OP = "integer.layer_norm"
    OPERANDS = (
        Operand("x", NARROW, "... C"),
        Operand("gain", ("int32",), "C"),
        Operand("offset", ("int32",), "C"),
    )
    RESULT = "... C"
    TRAITS = Traits(per_token=True, row_statistics=True)

    def __post_init__(self) -> None:
        check_bounds(self)
        check_shift(self)

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """Statistics of a row, then its normalised entries."""
        x, gain, offset = (operands[name] for name in ("x", "gain", "offset"))
        rows, channels = x.shape
        k = self.constants

        def bounded(row: Index, channel: Index) -> Entry:
            return norm.bounded(x[row, channel], k)

        total = domain.sum("sum", (rows,), channels, bounded)
        mean = domain.define(
            "mean", (rows,), lambda row: norm.mean_of(total[row], channels), "int32"
        )

        def deviation(row: Index, channel: Index) -> Entry:
            return norm.deviation(bounded(row, channel), mean[row])

        squares = domain.sum(
            "square_sum",
            (rows,),
            channels,
            lambda row, channel: norm.square(deviation(row, channel)),
        )
        half = domain.define(
            "half_bits", (rows,), lambda row: norm.root_half_bits(squares[row], k), "int32"
        )
        inverse = domain.define(
            "inverse",
            (rows,),
            lambda row: norm.inverse_std(squares[row], half[row], k),
            "int64",
        )
        return domain.define(
            "normalised",
            (rows, channels),
            lambda row, channel: norm.normalise(
                deviation(row, channel),
                inverse[row],
                gain[channel],
                offset[channel],
                k,
                self.shift,
                self.low,
                self.high,
            ),
            self.dtype,
        )
