"""i-tanh: ``tanh(x) = sgn(x) (1 - e) / (1 + e)`` with ``e = exp(-2 |x|)``."""

from __future__ import annotations

from .exponential import BinaryExponential, binary_exponential
from .values import Value, absolute, bind, floor_divide, less, minimum, select


def i_tanh(q: Value, constants: BinaryExponential, fraction_bits: int) -> Value:
    """Hyperbolic tangent of ``x = S q``.

    Parameters
    ----------
    q
        Input at scale S, int32.
    constants
        From ``BinaryExponential.for_tanh(S)``.
    fraction_bits
        At most 15: the result has the scale 2^-fraction_bits.

    Returns
    -------
    Value
        In [1 - 2^fraction_bits, 2^fraction_bits - 1]; odd: i_tanh(-q) = -i_tanh(q).
    """
    q = bind(q)
    one = constants.maximum
    e = bind(binary_exponential(absolute(q), constants))
    ratio = floor_divide((one - e) << fraction_bits, e + one)
    size = bind(minimum(ratio, (1 << fraction_bits) - 1))
    return select(less(q, 0), -size, size)
