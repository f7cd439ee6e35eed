"""A number of 16 bits in two parts of 8, for instructions that multiply bytes.

Products with weights are linear, so those of both parts, added up, are those of the number::

    x = 2^bits high_part(x) + low_part(x),    W x = 2^bits (W high_part(x)) + W low_part(x)
"""

from __future__ import annotations

from .values import Value

OPERAND_BITS = 8
"""Bits of the low part of a matrix operand, so that any of 16 bits has two of 8."""
OPERAND_LIMIT = 127 << 7
"""Bound of such an operand where a model is quantised: 15 bits, of which sums fit 32 the longer."""


def high_part(x: Value, bits: int) -> Value:
    """``floor(x / 2^bits)``: 8 bits of an x within ``127 2^bits``."""
    return x >> bits


def low_part(x: Value, bits: int) -> Value:
    """What x is besides its `high_part`: in [0, 2^bits)."""
    return x & ((1 << bits) - 1)


def joined(high: Value, low: Value, bits: int) -> Value:
    """The number, or the product, that has these parts."""
    return high * (1 << bits) + low
