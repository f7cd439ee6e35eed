"""Learned rows that join a stream: rounded to its scale at compile time."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import RangeError
from ..quantization_table import STREAM_LIMIT, ActivationQuant
from .context import LoweringContext


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
