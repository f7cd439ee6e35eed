"""`integer.layer_norm`: i-layer-norm of an input of 21 bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from ...dialect.record import flattened
from ...spec import layer_norm as norm
from ...spec.layer_norm import LayerNormConstants
from ..domain import Domain, Tensor
from ..row_norm import AffineNorm, Rows, wide_inverse


@dataclass(frozen=True)
class LayerNorm(AffineNorm):
    """i-layer-norm over the last axis: ``clamp((n gain + offset + half) >> shift, low, high)``.

    Parameters
    ----------
    constants : LayerNormConstants
        input_limit, epsilon, reciprocal_bits, normalised_bits.
    shift, low, high, dtype
        See `AffineNorm`; dtype int8, uint8, int16 or int32.
    """

    constants: LayerNormConstants = field(metadata=flattened("norm", LayerNormConstants))

    OP = "integer.layer_norm"

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """Statistics of a row, then its normalised entries."""
        x, gain, offset = (operands[name] for name in ("x", "gain", "offset"))
        k = self.constants
        row = Rows(domain, x, lambda x: norm.bounded(x, k), norm.mean_of, norm.deviation)
        inverse = wide_inverse(row, k)
        requantised = {"shift": self.shift, "low": self.low, "high": self.high}
        normalise = partial(norm.normalise, constants=k, **requantised)
        return row.normalised(normalise, (inverse,), (gain, offset), self.dtype)
