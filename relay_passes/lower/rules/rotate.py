"""Lowering of `canonical.rotate`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...errors import LoweringError
from ...spec.presets import Preset
from ...spec.rotation import FRACTION_BITS, rotation_table
from ...spec.short_requantise import short_factors
from ..context import LoweringContext
from ..forms import Form, storage
from ..rule import FACTOR, MATMUL, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerRotate(LoweringRule):
    """Rotary position embeddings of queries or keys, in every preset.

    Expects x as int8 with one scale, so that pairs of channels are turned as they are. Emits
    ``integer.rotate`` (specification: `rotation`). The table is rounded to Q15, its amplitude goes
    to the multiplier: layers with equal angles share it. The native form is the one of 8 bits that
    attention reads::

        y = rotate(x, t)  →  y = integer.rotate(x_s8, t_s16, m_s16)                      # S_y
    """

    op = "canonical.rotate"

    def need(self, preset: Preset) -> Need:
        """Reads an 8-bit form with one scale and yields one of 8 bits."""
        return Need(operands=(FACTOR,), result=(MATMUL,))

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        x, quant = activation(operands[0]).matmul(), context.table_entry("matmul", name)
        if x.zero_point != 0 or not x.per_tensor or str(x.var.ty.dtype) != "int8":
            raise LoweringError(
                f"what is rotated is {x.var.ty.dtype} with zero point {x.zero_point} and "
                f"{x.scale.size} scales",
                where=name,
                why="a rotation mixes channels, which must have one scale and a zero of 0",
                todo="quantise queries and keys symmetrically, with one scale each",
            )
        weight, num_heads = call.args[1], int(call.attrs["num_heads"])
        table = context.guard(name, lambda: rotation_table(context.weight(weight, name)))
        channels, (_positions, columns) = int(x.var.ty.shape.values[-1]), table.entries.shape
        turned = np.arange(channels) % (channels // num_heads) < columns
        amplitude = np.where(turned, table.amplitude, 1.0) if not turned.all() else table.amplitude
        reals = x.scale * amplitude / quant.channel_scale / 2.0**FRACTION_BITS
        magnitude, limits = 2**15 - 1, (quant.low, quant.high, quant.zero_point)
        factors = context.guard(name, lambda: short_factors(reals, magnitude, *limits))
        out = context.emit(
            integer.rotate(
                x.var,
                context.parameter(str(weight.name), table.entries),
                context.parameter(f"{name}.multiplier", factors.multipliers),
                name=name,
                num_heads=num_heads,
                raised=FRACTION_BITS,
                shift=factors.shift,
                low=quant.low,
                high=quant.high,
                dtype=storage(quant),
                zero_point=quant.zero_point,
            )
        )
        bound = max(-quant.low, quant.high)
        return IntegerValue(
            context, name, Form(out, name, quant.channel_scale, quant.zero_point, bound)
        )
