"""Lowering of operators on channels."""

from __future__ import annotations

import numpy as np

from ...canonical.operators.channels import Concatenate, ScaleChannels
from ..forms import Form
from ..rule import NATIVE, STREAM, Need, Node, activation, lowers
from ..value import IntegerValue


@lowers(Concatenate, need=Need(operands=(NATIVE, NATIVE)))
def concatenate(node: Node[Concatenate]) -> IntegerValue:
    """The channels of two values, one after the other.

    Takes any forms without a zero point and keeps their scales, which become scales by channel::

        y = concatenate(a, b)  →  y = integer.concatenate(a, b)               # S_a ..., S_b ...
    """
    forms = [activation(operand).ordered() for operand in node.operands]
    out = node.emit(*(form.var for form in forms))
    widths = [int(form.var.ty.shape.values[-1]) for form in forms]
    scales = [
        np.broadcast_to(form.scale, (width,)) for form, width in zip(forms, widths, strict=True)
    ]
    return node.result(out, np.concatenate(scales), max(form.magnitude for form in forms))


@lowers(ScaleChannels, need=Need(operands=(STREAM,), readable=False))
def scale_channels(node: Node[ScaleChannels]) -> IntegerValue:
    """Each channel times a number of its own.

    Emits nothing: the numbers become scales, by channel, of the integers that are there, and the
    requantisation to the form that is read takes them over::

        y = scale_channels(x, w)  →  x_stream                                     # S_x w[c]
    """
    source = node.x.stream()
    scale = source.scale * np.asarray(node.weight(1), np.float64)
    return node.value(Form(source.var, source.value, scale, 0, source.magnitude, readable=False))
