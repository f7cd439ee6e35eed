"""Lowering of `canonical.embedding`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...quantization_table import ActivationQuant
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form, multipliers
from ..rule import LoweringRule, Need
from ..value import IntegerValue


class LowerEmbedding(LoweringRule):
    """Row lookup in an int8 table, requantised by the row's own multiplier.

    Expects a table of int8 or int16 rows with one scale each (`QuantizationTable.embeddings`).
    Emits ``integer.embedding`` (specification: `requantise`), once per consumer's scale, because
    the requantisation to that scale is part of it: a sum of embeddings needs no further operator.
    The result is int32, bounded by the largest row at the target scale; it is not clamped::

        w = embedding(table, ids)          w = integer.embedding(ids, table, multiplier_s32[V])
        y = add(w, p)                  →   y = integer.add(w, p)
    """

    op = "canonical.embedding"

    def need(self, preset: Preset) -> Need:
        """Ids are no activation; the scale comes from whoever reads the result."""
        return Need(plain=True, readable=False)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        source, ids = call.args[0].name, operands[1]
        rows = context.table_weight("embeddings", name)
        fine = rows.values.dtype == np.int16
        largest, bits = (int(np.abs(rows.values).max()), 16) if fine else (128, 8)

        def rescale(quant: ActivationQuant, result: str) -> Form:
            factors = rows.scale / quant.scale
            # More bits than the table itself is good for would cost a product in int64.
            dyadic = context.guard(name, lambda: multipliers(factors, largest, bits))
            call = integer.embedding(
                ids,
                context.parameter(source, rows.values),
                context.parameter(f"{result}.multiplier", dyadic.multipliers),
                name=result,
                shift=dyadic.shift,
            )
            magnitude = int(abs(dyadic.values).max() * largest) + 1
            return Form(context.emit(call), result, quant.channel_scale, 0, magnitude)

        return IntegerValue(
            context,
            name,
            lambda: rescale(context.table_entry("stream", name), name),
            rescale,
        )
