"""Learned rows that join a stream: rounded to its scale at compile time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..errors import RangeError
from ..quantization_table import STREAM_LIMIT, ActivationQuant
from ..spec.presets import Preset
from .context import LoweringContext
from .forms import Form
from .rule import STREAM, TERM, LoweringRule, Need, activation
from .value import IntegerValue


def quantised_rows(
    context: LoweringContext, argument: relax.Expr, quant: ActivationQuant, where: str
) -> tuple[relax.Var, int]:
    """Round a float weight [N, C] to the stream scale of `quant`; int32.

    Parameters
    ----------
    context : LoweringContext
        Holds the float weights; receives the integers as a parameter.
    argument : relax.Expr
        The weight.
    quant : ActivationQuant
        A stream form: one scale, no zero point.
    where : str
        Canonical name of the reader, for messages.

    Returns
    -------
    variable : relax.Var
        The integer parameter.
    magnitude : int
        Largest absolute integer.

    Raises
    ------
    RangeError
        If a row needs more bits than a stream has, or is not finite.
    """
    weight = np.asarray(context.weight(argument, where), np.float64)
    steps = np.floor(weight / quant.scale + 0.5)
    largest = float(np.abs(steps).max(initial=0.0))
    if not largest <= STREAM_LIMIT:  # also when it is NaN
        raise RangeError(
            f"a learned row reaches {largest:.0f} steps",
            where=where,
            why=f"the scale of the stream that it joins is {quant.scale:.3g}, and a stream has "
            f"{STREAM_LIMIT} steps to either side",
            todo="calibrate with inputs that reach the model's usual range",
        )
    variable = context.parameter(str(argument.name), steps.astype(np.int32))
    return variable, int(largest)


class LowerLearnedRows(LoweringRule):
    """An operator that joins a value and learned rows.

    The value is requantised to the result's own stream scale, as the terms of a sum are; the rows
    are rounded to that scale at compile time, which is finer than an int8 table could be.
    """

    def need(self, preset: Preset) -> Need:
        """Reads the value at its own stream scale."""
        return Need(operands=(TERM,), result=(STREAM,), plain=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        quant = context.table_entry("stream", name)
        x = activation(operands[0]).term(quant, name)
        rows, largest = quantised_rows(context, call.args[1], quant, name)
        out = context.emit(self.join(x.var, rows, name))
        magnitude = self.magnitude(x.magnitude, largest)
        return IntegerValue(context, name, Form(out, name, quant.channel_scale, 0, magnitude))

    @abstractmethod
    def join(self, x: relax.Var, rows: relax.Var, name: str) -> relax.Call:
        """Call the integer operator on the value and the rows, both int32 and of one scale."""

    @abstractmethod
    def magnitude(self, x: int, rows: int) -> int:
        """Largest absolute integer of the result, from those of the value and the rows."""
