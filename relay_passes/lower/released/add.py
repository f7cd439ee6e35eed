"""Lowering of `canonical.add`, preset ``released``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ..context import LoweringContext
from ..forms import Form, storage
from ..rule import activation
from ..rules.add import LowerAdd
from ..value import IntegerValue
from .value import ReleasedValue


class LowerReleasedAdd(LowerAdd, preset="released"):
    """Sum of two values, each requantised to the sum's scale, clamped once.

    The terms are not clamped, the sum is: to 16 bits for embeddings, to 22 bits for residuals::

        y = add(a, b)  →  r = integer.requantise_even(a, m, e)
                          s = integer.requantise_even(b, n, f)
                          t = integer.add(r, s)
                          y = integer.requantise_even(t, 2, 1)     # clamps only
    """

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        quant = context.table_entry("stream", name)
        a, b = (activation(operand).term(quant, name) for operand in operands)
        total = context.emit(integer.add(a.var, b.var, name=f"{name}.sum"))
        clamped = context.emit(
            integer.requantise_even(
                total,
                context.parameter("released.two", np.array([2], np.int32)),
                context.parameter("released.one", np.array([1], np.int32)),
                name=name,
                split=0,
                low=quant.low,
                high=quant.high,
                dtype=storage(quant),
            )
        )
        magnitude = min(max(-quant.low, quant.high), a.magnitude + b.magnitude)
        return ReleasedValue(context, name, Form(clamped, name, quant.channel_scale, 0, magnitude))
