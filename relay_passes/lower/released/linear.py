"""Lowering of `canonical.linear`, preset ``released``."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import RangeError
from ...quantization_table import ActivationQuant, WeightQuant
from ..rules.linear import LowerLinear
from ..value import IntegerValue
from .value import ReleasedValue


class LowerReleasedLinear(LowerLinear, preset="released"):
    """``x W^T + b`` as in the other presets, with the bias rounded as the released code does.

    It forms ``round((1 / S) b)`` in float32, S being the float32 product of the input's and the
    row's scale, halves to even. A bias is a number that is stored, so its float32 rounding counts.
    """

    value: ClassVar[type[IntegerValue]] = ReleasedValue

    def bias_integers(
        self, name: str, bias: NDArray[np.floating], quant: ActivationQuant, rows: WeightQuant
    ) -> NDArray[np.int64]:
        """See `LowerLinear.bias_integers`; the input has no zero point."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            unit = np.float32(quant.scale) * rows.scale.astype(np.float32)
            steps = np.rint(np.float32(1.0) / unit * np.asarray(bias, np.float32))
        bad = np.flatnonzero(~(np.abs(steps) < 2.0**31))
        if bad.size:
            channel = int(bad[0])
            raise RangeError(
                f"the bias of channel {channel} is {float(bias[channel]):.6g}, which is "
                f"{float(steps[channel]):.6g} units of its accumulator",
                where=name,
                why="an accumulator is int32; the released code would cut the bias off",
                todo="the weights of this row are all but 0: prune the channel, or quantise the "
                "float weights with calibration",
            )
        return steps.astype(np.int64)
