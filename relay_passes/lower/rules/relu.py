"""Lowering of `canonical.relu`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import NATIVE, LoweringRule, Need, activation
from ..value import IntegerValue


class LowerRelu(LoweringRule):
    """``max(x, 0)`` on whatever integers the producer yields.

    Exact at any positive scale, so it works on the native form (an int32 accumulator with a scale
    per channel, as a rule); only a zero point or a negative scale needs the stream form. Keeps
    type, scale and bound::

        y = relu(x)  →  y = integer.relu(x)
    """

    op = "canonical.relu"

    def need(self, preset: Preset) -> Need:
        """Any form."""
        return Need(operands=(NATIVE,), plain=None, one_sided=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        operand = activation(operands[0])
        source = operand.native()
        signed = source.zero_point != 0 or (source.scale <= 0).any()
        if signed or not source.readable or _is_wide(source):
            source = operand.stream()
        out = context.emit(integer.relu(source.var, name=name))
        return IntegerValue(context, name, Form(out, name, source.scale, 0, source.magnitude))


def _is_wide(form: Form) -> bool:
    return str(form.var.ty.dtype) == "int64"
