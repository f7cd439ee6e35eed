"""`integer.layer_norm_short`: i-layer-norm of an input of 15 bits, in 32-bit arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from ...dialect.record import flattened
from ...spec import short_layer_norm as norm
from ...spec.layer_norm import mean_of
from ...spec.short_layer_norm import ShortLayerNorm
from ..checks import SHORT_DTYPES
from ..domain import Domain, Tensor
from ..row_norm import AffineNorm, Rows, short_inverse


@dataclass(frozen=True)
class LayerNormShort(AffineNorm):
    """i-layer-norm over the last axis, without 64-bit products per entry.

    Parameters
    ----------
    constants : ShortLayerNorm
        epsilon, root_fraction_bits.
    shift, low, high, dtype
        See `AffineNorm`; dtype int8, uint8 or int16.
    """

    constants: ShortLayerNorm = field(metadata=flattened("norm", ShortLayerNorm))

    OP = "integer.layer_norm_short"
    DTYPES = SHORT_DTYPES

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """Statistics of a row, then its normalised entries."""
        x, gain, offset = (operands[name] for name in ("x", "gain", "offset"))
        k = self.constants
        row = Rows(domain, x, norm.bounded, mean_of, norm.deviation)
        bits, inverse = short_inverse(row, k)
        requantised = {"shift": self.shift, "low": self.low, "high": self.high}
        normalise = partial(norm.normalise, constants=k, **requantised)
        return row.normalised(normalise, (bits, inverse), (gain, offset), self.dtype)
