"""`integer.released_layer_norm`: i-layer-norm as the released I-BERT code computes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...spec.released import ReleasedLayerNorm as Constants
from ...spec.released import layer_norm as norm
from ...spec.values import known
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operand, Operator, Traits, flattened
from ..types import NARROW


@dataclass(frozen=True)
class ReleasedLayerNorm(Operator):
    """Released i-layer-norm over the last axis, at the scale ``gamma sqrt(C) / 2^30`` per channel.

    Parameters
    ----------
    constants : ReleasedLayerNorm
        shift.
    """

    constants: Constants = field(metadata=flattened("norm", Constants))

    OP = "integer.released_layer_norm"
    OPERANDS = (Operand("x", NARROW, "... C"), Operand("offset", ("int64",), "C"))
    RESULT = "... C"
    dtype = "int64"
    TRAITS = Traits(per_token=True, row_statistics=True)

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """Statistics of a row, then its normalised entries."""
        x, offset = operands["x"], operands["offset"]
        rows, channels = x.shape
        k = self.constants
        total = domain.sum("sum", (rows,), channels, lambda row, channel: x[row, channel])
        mean = domain.define(
            "mean", (rows,), lambda row: norm.mean_of(total[row], channels), "int32"
        )

        def deviation(row: Index, channel: Index) -> Entry:
            entry = x[row, channel]
            # A mean lies among the values; that its interval is that of x, the sum's cannot tell.
            return entry - known(mean[row], *domain.bounds(x))

        squares = domain.sum(
            "square_sum",
            (rows,),
            channels,
            lambda row, channel: norm.square(deviation(row, channel), k),
        )
        half = domain.define(
            "half_bits", (rows,), lambda row: norm.root_half_bits(squares[row]), "int32"
        )
        inverse = domain.define(
            "inverse",
            (rows,),
            lambda row: norm.factor(squares[row], half[row], k),
            "int64",
        )
        return domain.define(
            "normalised",
            (rows, channels),
            lambda row, channel: norm.normalise(
                deviation(row, channel), inverse[row], offset[channel]
            ),
            "int64",
        )
