"""Lowering of `canonical.linear`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from ... import integer
from ...errors import LoweringError, RangeError
from ...integer.intervals import check_accumulator, largest_partial_sum
from ...quantization_table import ActivationQuant, WeightQuant
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..row_scales import product_shift, restored_sums
from ..rule import MATMUL, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerLinear(LoweringRule):
    """``x W^T + b`` on 8-bit operands, accumulated in int32.

    Expects x in its matmul form (int8, or uint8 with a zero point) and W as int8 rows. Emits
    ``integer.linear``. The accumulator has one scale per output channel, ``S_x S_w[n]``; a zero
    point z of x is folded in the bias, ``round(b / (S_x S_w[n])) - z sum_k w[n, k]``, and x's
    channel divisors are in the weights already. Of a table that is `centred`, the bias also takes
    what rounding adds to x in the mean. What the table takes off x (`QuantizationTable.offsets`)
    is multiplied by the float weights and added to the bias; what it takes off y comes off the
    bias. The bound of every channel is computed from its weights and
    must fit int32::

        y = linear(x, W, b)  →  y = integer.linear(x_8, W_s8, bias_s32)      # S_x * S_w[n]

    Of an x with a scale per row the magnitude of the row multiplies the sums before the bias::

        y = linear(x, W, b)  →  a = integer.linear(x_8, W_s8, 0)
                                y = integer.scale_rows(a, m, bias_s32, p)    # S_x S_w[n] 2^p / 127
    """

    op = "canonical.linear"

    def need(self, preset: Preset) -> Need:
        """Reads the 8-bit form; the accumulator needs no entry of its own."""
        return Need(operands=(MATMUL,))

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        weight, bias = call.args[1].name, call.args[2].name
        x = activation(operands[0])
        quant = context.table_entry("matmul", x.name)
        rows = context.table_weight("weights", name)
        outputs, channels = (int(extent) for extent in call.args[1].ty.shape.values)
        expected = outputs, channels if quant.splits is None else int(quant.splits.sum())
        if rows.values.shape != expected:
            raise LoweringError(
                f"the quantised weight has shape {rows.values.shape}",
                where=name,
                why=f"{weight} of the model has shape {expected}",
                todo="use the quantisation table that was made for this model",
            )
        source = x.operand()
        floats = context.weight(call.args[2], name)
        taken = context.table.offsets.get(name)
        if taken is not None:
            floats = floats - taken
        if source.offset is not None:
            floats = floats + context.weight(call.args[1], name) @ source.offset
        if source.row_magnitude is not None:
            form = self._by_row(call, source, rows, floats, context)
            return self.value(context, name, _taken_off(form, taken))
        scale = quant.scale * rows.scale
        if context.table.centred:
            # Of a channel that is split, one column is rounded; the others are at an end of their
            # range.
            excess = np.broadcast_to(source.excess, rows.values.shape[1:])[:channels]
            floats = floats - scale * (rows.values[:, :channels] @ excess)
            context.record_excess(x.name, source, excess)
        integers = self.bias_integers(name, floats, quant, rows)
        context.guard(
            name,
            lambda: check_accumulator(rows.values, integers, -source.magnitude, source.magnitude),
        )
        magnitude = int(largest_partial_sum(rows.values, integers, source.magnitude).max())
        out = context.emit(
            integer.linear(
                source.var,
                context.parameter(weight, rows.values),
                context.parameter(
                    bias if np.all(quant.zero_points == 0) else f"{bias}.compensated",
                    integers.astype(np.int32),
                ),
                name=name,
            )
        )
        form = _taken_off(Form(out, name, scale, 0, magnitude), taken)
        return self.value(context, name, form)

    def _by_row(
        self,
        call: relax.Call,
        source: Form,
        rows: WeightQuant,
        floats: NDArray[np.floating],
        context: LoweringContext,
    ) -> Form:
        """The product of rows with scales of their own: its bias is added behind these."""
        assert source.row_magnitude is not None
        name, weight, bias = str(call.attrs["name"]), call.args[1].name, call.args[2].name
        outputs, channels = rows.values.shape
        nothing = np.zeros(outputs, np.int32)
        context.guard(
            name,
            lambda: check_accumulator(rows.values, nothing, -source.magnitude, source.magnitude),
        )
        sums = context.emit(
            integer.linear(
                source.var,
                context.parameter(weight, rows.values),
                context.parameter(f"{name}.offset", nothing),
                name=name,
            )
        )
        unit, shift = float(source.scale[0]), product_shift(channels)
        magnitude = int(largest_partial_sum(rows.values, nothing, source.magnitude).max())
        form = Form(sums, name, unit * rows.scale, 0, magnitude)
        restored = ActivationQuant(unit * 2.0**shift, -source.magnitude, source.magnitude)
        integers = self.bias_integers(name, floats, restored, rows)
        return restored_sums(context, form, source.row_magnitude, shift, integers, bias)

    value: ClassVar[type[IntegerValue]] = IntegerValue
    """What the result is wrapped in: it decides how other forms are made from the accumulator."""

    def bias_integers(
        self, name: str, bias: NDArray[np.floating], quant: ActivationQuant, rows: WeightQuant
    ) -> NDArray[np.int64]:
        """Bias in units of the accumulator, with the input's zero point folded in.

        Parameters
        ----------
        name : str
            The layer.
        bias : numpy.ndarray
            Float [N].
        quant : ActivationQuant
            The input's 8-bit form.
        rows : WeightQuant
            The matrix.

        Returns
        -------
        numpy.ndarray
            int64 [N].

        Raises
        ------
        RangeError
            If an entry is not finite.
        """
        return _bias(name, bias, rows, quant)


def _taken_off(form: Form, taken: NDArray[np.float64] | None) -> Form:
    """The form, of numbers that something was taken off."""
    return form if taken is None else replace(form, offset=taken, readable=False)


def _bias(
    name: str,
    bias: NDArray[np.floating],
    rows: WeightQuant,
    quant: ActivationQuant,
) -> NDArray[np.int64]:
    """Bias in units of the accumulator, with the input's zero point folded in; int64 [N].

    A channel has one zero point, however many columns it is split into.
    """
    steps = np.asarray(bias, dtype=np.float64) / (quant.scale * rows.scale)
    if not np.isfinite(steps).all():
        channel = int(np.flatnonzero(~np.isfinite(steps))[0])
        raise RangeError(
            f"the bias of channel {channel} is {bias[channel]}",
            where=name,
            why="a weight of the model is infinite or not a number",
            todo="check the checkpoint",
        )
    channels = None if quant.splits is None else quant.splits.size
    compensation = (rows.values[:, :channels].astype(np.int64) * quant.zero_points).sum(axis=1)
    return np.floor(steps + 0.5).astype(np.int64) - compensation
