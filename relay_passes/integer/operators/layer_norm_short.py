"""`integer.layer_norm_short`: i-layer-norm of an input of 15 bits, in 32-bit arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dialect.record import Operand, flattened
from ...spec import short_layer_norm as norm
from ...spec.short_layer_norm import ShortLayerNorm
from ..checks import SHORT_DTYPES, check_bounds, check_shift
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import NARROW


@dataclass(frozen=True)
class LayerNormShort(Operator):
    """i-layer-norm over the last axis, without 64-bit products per entry.

    Parameters
    ----------
    constants : ShortLayerNorm
        epsilon, root_fraction_bits.
    shift : int
        Right shift of ``n * gain + offset``.
    low, high : int
        Closed interval of the result, within `dtype`.
    dtype : str
        int8, uint8 or int16.
    """

    constants: ShortLayerNorm = field(metadata=flattened("norm", ShortLayerNorm))
    shift: int
    low: int
    high: int
    dtype: str

    OP = "integer.layer_norm_short"
    OPERANDS = (
        Operand("x", NARROW, "... C"),
        Operand("gain", ("int32",), "C"),
        Operand("offset", ("int32",), "C"),
    )
    RESULT = "... C"
    TRAITS = Traits(per_token=True, row_statistics=True)

    def __post_init__(self) -> None:
        check_bounds(self, SHORT_DTYPES)
        check_shift(self)

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """Statistics of a row, then its normalised entries."""
        x, gain, offset = (operands[name] for name in ("x", "gain", "offset"))
        rows, channels = x.shape
        k = self.constants

        def bounded(row: Index, channel: Index) -> Entry:
            return norm.bounded(x[row, channel])

        total = domain.sum("sum", (rows,), channels, bounded)
        mean = domain.define(
            "mean", (rows,), lambda row: norm.mean_of(total[row], channels), "int32"
        )
        squares = domain.square_sum("square_sum", bounded, total, mean, (rows, channels))
        half = domain.define(
            "half_bits", (rows,), lambda row: norm.root_half_bits(squares[row], k), "int32"
        )
        root = domain.define(
            "square_root", (rows,), lambda row: norm.root(squares[row], half[row], k), "int32"
        )
        bits = domain.define(
            "root_bits", (rows,), lambda row: norm.root_bits(root[row], k), "int32"
        )
        inverse = domain.define(
            "inverse", (rows,), lambda row: norm.reciprocal(root[row], bits[row]), "int32"
        )
        return domain.define(
            "normalised",
            (rows, channels),
            lambda row, channel: norm.normalise(
                norm.deviation(bounded(row, channel), mean[row]),
                bits[row],
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
