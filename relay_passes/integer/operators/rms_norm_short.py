"""`integer.rms_norm_short`: i-RMSNorm of an input of 15 bits, in 32-bit arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...dialect.record import flattened
from ...spec import short_layer_norm as norm
from ...spec.short_layer_norm import ShortLayerNorm
from ..checks import SHORT_DTYPES
from ..domain import Domain, Entry, Tensor
from ..row_norm import Rows, ScaledNorm, short_inverse


@dataclass(frozen=True)
class RmsNormShort(ScaledNorm):
    """i-RMSNorm without 64-bit products per entry.

    Parameters
    ----------
    constants : ShortLayerNorm
        epsilon, root_fraction_bits.
    shift, low, high, dtype
        See `ScaledNorm`; dtype int8, uint8 or int16.
    """

    constants: ShortLayerNorm = field(metadata=flattened("norm", ShortLayerNorm))

    OP = "integer.rms_norm_short"
    DTYPES = SHORT_DTYPES

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """The root of a row's squares, then its normalised entries."""
        k = self.constants
        row = Rows(domain, operands["x"], norm.bounded)
        bits, inverse = short_inverse(row, k)
        requantised = {"shift": self.shift, "low": self.low, "high": self.high}

        def normalise(x: Entry, bits: Entry, inverse: Entry, gain: Entry) -> Entry:
            # n is rounded down: half a unit of it.
            offset = gain >> 1
            return norm.normalise(x, bits, inverse, gain, offset, constants=k, **requantised)

        return row.normalised(normalise, (bits, inverse), (operands["gain"],), self.dtype)
