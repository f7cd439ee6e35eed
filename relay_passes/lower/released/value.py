"""Forms of a value under the preset ``released``."""

from __future__ import annotations

import numpy as np

from ... import integer
from ...errors import LoweringError
from ...quantization_table import ActivationQuant
from ...spec.released import exact_factors
from ..context import LoweringContext
from ..forms import Form, storage
from ..value import IntegerValue

TERM_LIMIT = (1 << 30) - 1
"""Terms of a sum are not clamped in the released code, the sum is, to 22 bits: a clamp to 31 bits
changes nothing that this one leaves, and keeps the sum in int32."""


def rescale(context: LoweringContext, source: Form, quant: ActivationQuant, name: str) -> Form:
    """Emit ``integer.requantise_even`` to the scale and bounds of `quant`.

    Parameters
    ----------
    context : LoweringContext
        The lowering.
    source : Form
        A form without a zero point; its scales may be negative.
    quant : ActivationQuant
        What it becomes.
    name : str
        Name of the new operator.

    Returns
    -------
    Form
        `source` itself where the two scales are one and its integers lie within the bounds: a
        factor of exactly 1 is the identity in the released code too.
    """
    fits = source.magnitude <= max(-quant.low, quant.high)
    same_type = str(source.var.ty.dtype) == storage(quant) or storage(quant) == "int32"
    if fits and same_type and np.array_equal(source.scale, quant.channel_scale):
        return source
    if source.zero_point != 0:
        raise LoweringError(
            "an operand has a zero point",
            where=name,
            why="the released arithmetic is symmetric",
            todo="quantise this value symmetrically",
        )
    factors = context.guard(
        name, lambda: exact_factors(source.scale / quant.channel_scale, source.magnitude)
    )
    out = context.emit(
        integer.requantise_even(
            source.var,
            context.parameter(f"{name}.multiplier", factors.multipliers),
            context.parameter(f"{name}.shift", factors.shifts),
            name=name,
            split=factors.split,
            low=quant.low,
            high=quant.high,
            dtype=storage(quant),
            zero_point=quant.zero_point,
        )
    )
    magnitude = max(-quant.low, quant.high)
    return Form(out, name, quant.channel_scale, quant.zero_point, magnitude)


class ReleasedValue(IntegerValue):
    """A value whose forms are made as the released code makes them.

    The first QuantAct after an operator is the table's ``grids`` entry; a second one is the
    ``matmul`` entry. Matrix products read the last of them, and so do additions.
    """

    def term(self, quant: ActivationQuant, consumer: str) -> Form:
        """Return the value at the scale of the sum `consumer`; see `IntegerValue.term`."""
        has_bytes = self.name in self.context.table.matmul
        source = self.matmul() if has_bytes else self.native()
        unclamped = ActivationQuant(quant.scale, -TERM_LIMIT, TERM_LIMIT)
        name = f"{self.name}.for.{consumer}"
        form = rescale(self.context, source, unclamped, name)
        if form is not source:
            self.context.record(self.name, "term", form)
        return form

    def _requantise(self, quant: ActivationQuant, name: str, exact: bool) -> Form:
        return rescale(self.context, self.native(), quant, name)
