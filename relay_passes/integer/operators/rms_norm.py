"""`integer.rms_norm`: i-RMSNorm of an input of 21 bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from ...dialect.record import flattened
from ...spec import layer_norm as norm
from ...spec.layer_norm import LayerNormConstants
from ..domain import Domain, Tensor
from ..row_norm import Rows, ScaledNorm, wide_inverse


@dataclass(frozen=True)
class RmsNorm(ScaledNorm):
    """i-layer-norm without mean and offset: ``clamp((n gain + half) >> shift, low, high)``.

    Parameters
    ----------
    constants : LayerNormConstants
        input_limit, epsilon, reciprocal_bits, normalised_bits.
    shift, low, high, dtype
        See `ScaledNorm`; dtype int8, uint8, int16 or int32.
    """

    constants: LayerNormConstants = field(metadata=flattened("norm", LayerNormConstants))

    OP = "integer.rms_norm"

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """The root of a row's squares, then its normalised entries."""
        k = self.constants
        row = Rows(domain, operands["x"], lambda x: norm.bounded(x, k))
        inverse = wide_inverse(row, k)
        requantised = {"shift": self.shift, "low": self.low, "high": self.high}
        normalise = partial(norm.normalise, offset=0, constants=k, **requantised)
        return row.normalised(normalise, (inverse,), (operands["gain"],), self.dtype)
