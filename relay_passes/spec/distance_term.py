"""Terms of attention scores that depend on the data and on a distance (disentangled attention).

A query meets not only the key of a token, but also a learned vector for the distance to it::

    score = q . k + q . u[d] + k . w[d]

(He et al., DeBERTa, arXiv:2006.03654, equation 4.) In integers q . k has the scale S_q S_k. With u
in units of S_k the second product has the same, so no requantisation lies between them: u is added
to k, as it were. The vectors keep `FRACTION_BITS` bits more than k, which are rounded away after
the sum, so what is lost is less than what rounding q and k loses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import RangeError

FRACTION_BITS = 7
"""Most fraction bits that vectors have beyond the unit of what they are added to."""
_ENTRY_LIMIT = 2**15 - 1
_SUM_LIMIT = 2**31 - 1
_FACTOR_LIMIT = 2**7


@dataclass(frozen=True, eq=False)
class DistanceTable:
    """Vectors for each distance in 16 bits.

    Parameters
    ----------
    entries
        int16, [channels, distances].
    shift
        Their fraction bits.
    """

    entries: NDArray[np.int16]
    shift: int


def distance_table(vectors: NDArray[np.floating], unit: float, num_heads: int) -> DistanceTable:
    """Round vectors for each distance to as many fraction bits as fit.

    Parameters
    ----------
    vectors
        [distances, channels].
    unit
        Real value of 1 in the operand that they are added to.
    num_heads
        Heads, which divide the channels.

    Returns
    -------
    DistanceTable
        Products of a head with int8 fit int32.

    Raises
    ------
    RangeError
        If an entry is not finite, or more than 2^15 - 1 units.
    """
    units = np.asarray(vectors, np.float64) / unit
    largest = float(np.abs(units).max(initial=0.0))
    width = units.shape[1] // num_heads
    limit = min(_ENTRY_LIMIT, _SUM_LIMIT // (2 * _FACTOR_LIMIT * width))
    for shift in range(FRACTION_BITS, -1, -1):
        # Also where it is not a number.
        if largest * 2**shift + 0.5 <= limit:
            entries = np.floor(units * 2.0**shift + 0.5).astype(np.int16)
            return DistanceTable(np.ascontiguousarray(entries.T), shift)
    raise RangeError(
        f"a vector for a distance reaches {largest:.3g} steps of what it is added to",
        why=f"a step is {unit:.3g}, and {limit} of them is the most for heads of {width} channels",
        todo="calibrate with inputs that reach the usual range of queries and keys",
    )
