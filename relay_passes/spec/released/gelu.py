"""Constants of the released i-GELU: the published form with its fixed shift of 14.

The function itself is `ibert_tvm.relay_passes.spec.gelu.gelu_paper`.
"""

from __future__ import annotations

import math

import numpy as np

from ...errors import RangeError
from ..gelu import PaperGelu
from ..polynomial import check_scale

ROOT_TWO = 1.4142
A, B = -0.2888, -1.769
SHIFT = 14
_INT32_MIN = -(2**31)


def released_gelu(scales: np.ndarray) -> PaperGelu:
    """Constants for an accumulator with one scale, or one per channel.

    The shift of 14 is kept for every scale, although it leaves little of i-erf for coarse ones
    (the error passes 0.02 at S = 1e-3): a checkpoint was trained with it.

    Parameters
    ----------
    scales
        S [C] (or [1]) of the input, positive.

    Raises
    ------
    RangeError
        If a scale is not positive, or so fine that a constant leaves its width.
    """
    rows = []
    for channel, scale in enumerate(np.atleast_1d(np.asarray(scales, np.float64)).tolist()):
        check_scale(scale, f"i-GELU, channel {channel}")
        inner = scale / ROOT_TWO
        low = math.floor(B / inner)
        constant = math.floor(1.0 / A / inner**2)
        erf_scale = inner**2 * A * 2.0**SHIFT
        one = math.floor(1.0 / erf_scale)
        if low < _INT32_MIN or one < _INT32_MIN or constant < -(2**61):
            raise RangeError(
                f"scale {scale:.3g} of i-GELU, channel {channel}, is too fine",
                why=f"with the released shift of {SHIFT} its 1 is {one} units, and int32 ends at "
                f"{_INT32_MIN}",
                todo="this channel's weights are all but 0: prune them, or quantise the float "
                "weights with calibration",
            )
        rows.append((low, constant, one, SHIFT, scale * erf_scale / 2.0))
    return PaperGelu.of(rows)
