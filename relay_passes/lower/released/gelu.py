"""Lowering of `canonical.gelu`, preset ``released``."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ...spec.released import released_gelu
from ..context import LoweringContext
from ..forms import Form
from ..rule import NATIVE, LoweringRule, Need, activation
from ..value import IntegerValue
from .value import ReleasedValue


class LowerReleasedGelu(LoweringRule, preset="released"):
    """i-GELU on the int32 accumulator with the fixed shift of 14.

    Emits the published form with its constants per channel, int64 at a negative scale::

        g = gelu(y)  →  g = integer.gelu(y, q_b, q_c, q_1, 14)
    """

    op = "canonical.gelu"

    def need(self, preset: Preset) -> Need:
        """Takes what the producer yields."""
        return Need(operands=(NATIVE,), readable=False, one_sided=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        source = activation(operands[0]).native()
        k = context.guard(name, lambda: released_gelu(source.scale))
        arrays = (("q_b", k.q_b), ("q_c", k.q_c), ("q_1", k.q_1), ("erf_shift", k.erf_shift[:1]))
        constants = [context.parameter(f"{name}.{label}", array) for label, array in arrays]
        out = context.emit(integer.gelu_paper(source.var, *constants, name=name))
        # |i_erf| is at most |q_1|, but for the floors of its constants.
        magnitude = source.magnitude * (2 * int(abs(k.q_1.astype("int64")).max()) + 4)
        return ReleasedValue(context, name, Form(out, name, k.scales, 0, magnitude))
