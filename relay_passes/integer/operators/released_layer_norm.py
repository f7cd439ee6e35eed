"""`integer.released_layer_norm`: i-layer-norm as the released I-BERT code computes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dialect.record import Operand, flattened
from ...spec.released import ReleasedLayerNorm as Constants
from ...spec.released import layer_norm as norm
from ...spec.values import known
from ..domain import Domain, Entry, Tensor
from ..operator import Operator
from ..row_norm import NORM_TRAITS, Rows
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
    TRAITS = NORM_TRAITS

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """Statistics of a row, then its normalised entries."""
        x, k = operands["x"], self.constants

        def deviation(entry: Entry, mean: Entry) -> Entry:
            # A mean lies among the values; that its interval is that of x, the sum's cannot tell.
            return entry - known(mean, *domain.bounds(x))

        row = Rows(domain, x, lambda entry: entry, norm.mean_of, deviation)
        squares = row.sum("square_sum", lambda d: norm.square(d, k))
        half = row.number("half_bits", norm.root_half_bits, squares)
        factor = row.number(
            "inverse", lambda v, h: norm.factor(v, h, k), squares, half, dtype="int64"
        )
        return row.normalised(norm.normalise, (factor,), (operands["offset"],), self.dtype)
