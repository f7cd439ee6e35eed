"""Lowering of sums and products of two values, or of a value and learned rows."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from tvm import relax

from ... import integer
from ...canonical.operator import CanonicalOperator
from ...canonical.operators.sums import Add, AddPositions, AddRow, Multiply
from ...errors import RangeError
from ...quantization_table import STREAM_LIMIT, ActivationQuant
from ...spec.presets import Preset
from ...spec.short_layer_norm import INPUT_LIMIT
from ..forms import Form
from ..rule import STREAM, TERM, Need, Node, activation, lowers
from ..value import IntegerValue

_HIGH = 2**15 - 1
_SHORT_HIGH = 2**14 - 1
_SMALLEST_FACTOR = 1e-3  # a factor that calibration saw nothing of still gets a scale


def need_of_sum(preset: Preset, call: relax.Call | None) -> Need:
    """Both terms are read at the sum's own stream scale."""
    return Need(operands=(TERM, TERM), result=(STREAM,), plain=True, short=preset.short)


@lowers(Add, need=need_of_sum)
def add(node: Node[Add]) -> IntegerValue:
    """Sum of two values with different scales.

    Both terms are requantised to the sum's own stream scale; then the integers are added. Where the
    preset computes in 16 bits and the sum's entry has 15, emits ``integer.add_short``, clamped to
    that entry; otherwise ``integer.add``, int32, one bit more than its terms. Wide terms are
    clamped to the range of the sum's entry; short ones may use all of 16 bits, and embeddings come
    at the right scale at once::

        y = add(a, b)  →  r = integer.requantise(a, m);  s = integer.requantise(b, n)
                          y = integer.add(r, s)                                   # S_y
    """
    quant = node.entry("stream")
    a, b = (activation(operand).term(quant, node.name) for operand in node.operands)
    if node.preset.short and max(-quant.low, quant.high) <= INPUT_LIMIT:
        short = integer.add_short(a.var, b.var, name=node.name, low=quant.low, high=quant.high)
        return node.value(Form.of(node.context.emit(short), node.name, quant))
    out = node.emit(a.var, b.var)
    return node.result(out, quant.channel_scale, a.magnitude + b.magnitude)


LEARNED_ROWS = Need(operands=(TERM,), result=(STREAM,), plain=True)
"""The value is read at the result's own stream scale."""


def join_rows(node: Node[CanonicalOperator], magnitude: Callable[[int, int], int]) -> IntegerValue:
    """Lower an operator that joins a value and learned rows.

    The value is requantised to the result's own stream scale, as the terms of a sum are; the rows
    are rounded to that scale at compile time, which is finer than an int8 table could be.

    Parameters
    ----------
    node
        Its second operand is the rows.
    magnitude
        Largest absolute integer of the result, from those of the value and the rows.

    Raises
    ------
    RangeError
        If a row needs more bits than a stream has, or is not finite.
    """
    quant = node.entry("stream")
    x = node.x.term(quant, node.name)
    steps = np.floor(np.asarray(node.weight(1), np.float64) / quant.scale + 0.5)
    largest = float(np.abs(steps).max(initial=0.0))
    if not largest <= STREAM_LIMIT:  # also when it is NaN
        raise RangeError(
            f"a learned row reaches {largest:.0f} steps",
            where=node.name,
            why=f"the scale of the stream that it joins is {quant.scale:.3g}, and a stream has "
            f"{STREAM_LIMIT} steps to either side",
            todo="calibrate with inputs that reach the model's usual range",
        )
    out = node.emit(x.var, node.in_place_of(1, steps.astype(np.int32)))
    return node.result(out, quant.channel_scale, magnitude(x.magnitude, int(largest)))


@lowers(AddRow, AddPositions, need=LEARNED_ROWS)
def add_rows(node: Node[AddRow | AddPositions]) -> IntegerValue:
    """One number per channel added to every token, or a row of a table by its place.

    int32, one bit more than the terms; the length of sequences with places is static::

        y = add_row(x, r)  →  t = integer.requantise(x, m)
                              y = integer.add_row(t, r_s32)                       # S_y
    """
    return join_rows(node, operator.add)


def _short_stream(largest: float) -> ActivationQuant:
    """15 bits, which a requantisation in 16-bit arithmetic gives."""
    scale = max(largest, _SMALLEST_FACTOR) / _SHORT_HIGH
    return ActivationQuant(scale, -_SHORT_HIGH, _SHORT_HIGH)


def _need_of_product(preset: Preset, call: relax.Call | None) -> Need:
    """Stream forms; what it yields is read in no other form than a requantised one."""
    wish = _short_stream if preset.short else None
    return Need(operands=(STREAM, STREAM), readable=False, stream_for=wish)


@lowers(Multiply, need=_need_of_product)
def multiply(node: Node[Multiply]) -> IntegerValue:
    """Product of two values, in both presets.

    Reads both at one scale, in 16 bits: as they are where they have them, otherwise in stream form.
    Emits ``integer.multiply``, int32, exact: it is rounded once, by the requantisation to the form
    that is read, whose factors may differ by channel::

        y = multiply(a, b)  →  y = integer.multiply(a_s16, b_s16)                 # S_a S_b
                               q = integer.requantise(y, m)                       # for its reader
    """
    a, b = (_factor(activation(operand), node.name) for operand in node.operands)
    out, magnitude = node.emit(a.var, b.var), a.magnitude * b.magnitude
    return node.value(Form(out, node.name, a.scale * b.scale, 0, magnitude, readable=False))


def _factor(operand: IntegerValue, consumer: str) -> Form:
    """A form in 16 bits, with one scale."""
    native = operand.native()
    source = native if native.plain and native.magnitude <= _HIGH else operand.stream()
    return operand.within(source, _HIGH, consumer)
