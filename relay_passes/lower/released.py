"""Lowering rules of the preset ``released``: the arithmetic of the released I-BERT code.

They replace the rules of the operators whose released form differs. What they share: requantisation
by a 31-bit mantissa with an exponent per channel, halves to even; a value that a matrix product
reads in 8 bits enters additions in those 8 bits too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from .. import integer
from ..canonical.operator import CanonicalOperator
from ..canonical.operators.attention import Attention
from ..canonical.operators.functions import Gelu
from ..canonical.operators.linear import Linear
from ..canonical.operators.norms import LayerNorm
from ..canonical.operators.sums import Add
from ..canonical.operators.tokens import Embedding
from ..dialect.calls import operands_of
from ..dialect.heads import UNBOUNDED
from ..errors import LoweringError, RangeError
from ..quantization_table import ActivationQuant, WeightQuant
from ..spec.released import (
    ReleasedExponential,
    ReleasedLayerNorm,
    exact_factors,
    layer_norm,
    released_gelu,
)
from ..spec.softmax import CONTEXT_BITS, CONTEXT_LIMIT
from .context import LoweringContext
from .forms import Form, storage, stored
from .rule import MATMUL, NATIVE, SCALAR, Need, Node, activation, lowers
from .rules.attention import OPERANDS, check_operand, context_scale
from .rules.functions import published_gelu
from .rules.linear import LINEAR, accumulator
from .rules.sums import need_of_sum
from .value import IntegerValue

_PRESET = "released"
EXPONENTIAL = "{}.exponential"
"""Name of the stream entry that holds the scale of an attention's 16-bit exponentials."""
TERM_LIMIT = (1 << 30) - 1
"""Terms of a sum are not clamped in the released code, the sum is, to 22 bits: a clamp to 31 bits
changes nothing that this one leaves, and keeps the sum in int32."""


def rescale(context: LoweringContext, source: Form, quant: ActivationQuant, name: str) -> Form:
    """Emit ``integer.requantise_even`` to the scale and bounds of `quant`.

    Parameters
    ----------
    context
        The lowering.
    source
        A form without a zero point; its scales may be negative.
    quant
        What it becomes.
    name
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
            **stored(quant),
        )
    )
    return Form.of(out, name, quant)


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


def _value(node: Node[CanonicalOperator], form: Form) -> ReleasedValue:
    return ReleasedValue(node.context, node.name, form)


def _small(node: Node[CanonicalOperator], label: str, number: int) -> relax.Var:
    """A constant that all calls share."""
    return node.context.parameter(f"released.{label}", np.array([number], np.int32))


@lowers(Add, need=need_of_sum, preset=_PRESET)
def released_add(node: Node[Add]) -> IntegerValue:
    """Sum of two values, each requantised to the sum's scale, clamped once.

    The terms are not clamped, the sum is: to 16 bits for embeddings, to 22 bits for residuals::

        y = add(a, b)  →  r = integer.requantise_even(a, m, e)
                          s = integer.requantise_even(b, n, f)
                          t = integer.add(r, s)
                          y = integer.requantise_even(t, 2, 1)     # clamps only
    """
    quant = node.entry("stream")
    a, b = (activation(operand).term(quant, node.name) for operand in node.operands)
    total = node.emit(a.var, b.var, name=f"{node.name}.sum")
    two, one = _small(node, "two", 2), _small(node, "one", 1)
    clamp = integer.requantise_even(total, two, one, name=node.name, split=0, **stored(quant))
    magnitude = min(max(-quant.low, quant.high), a.magnitude + b.magnitude)
    form = Form(node.context.emit(clamp), node.name, quant.channel_scale, 0, magnitude)
    return _value(node, form)


@lowers(Attention, need=Need(operands=OPERANDS, result=(MATMUL,)), preset=_PRESET)
def released_attention(node: Node[Attention]) -> IntegerValue:
    """Masked attention with exponentials of a calibrated range and floored probabilities.

    Expects q, k and v as int8 with one scale each, and in the table's ``stream`` section the scale
    of the exponentials under the operator's name and ``.exponential``: in units of the integers
    that the released i-exp yields, not of its real value. The context leaves as int32 at the scale
    S_v / 256 and is requantised by whoever reads it::

        c = attention(q, k, v, mask)  →  c = integer.attention(q_s8, k_s8, v_s8, mask, 1)
                                         o = integer.requantise_even(c, m, e)
    """
    name, attributes = node.name, node.operator
    by_distance = {"bias", "key_positions", "query_positions"} & {*operands_of(node.call)}
    window = min(attributes.before, attributes.after) < UNBOUNDED
    if attributes.cap > 0 or window or by_distance:
        raise LoweringError(
            "attention with a window, a bias by distance or capped scores",
            where=name,
            why="the released code, whose arithmetic this preset repeats, has none of them",
            todo="quantise the model with the preset 'accurate' or 'paper'",
        )
    q, k, v = (activation(operand).matmul() for operand in node.operands[:3])
    for label, form in (("queries", q), ("keys", k), ("values", v)):
        check_operand(label, form, name, per_tensor=True)
    score_scale = float(q.scale[0] * k.scale[0]) * attributes.scale
    result_scale = node.context.table_entry("stream", EXPONENTIAL.format(name)).scale
    out = node.emit(
        q.var,
        k.var,
        v.var,
        node.operands[3] if len(node.operands) > 3 else None,
        _small(node, "one", 1),
        softmax=node.preset.softmax,
        exponential=ReleasedExponential.from_scales(score_scale, result_scale),
        shift=0,
        low=-CONTEXT_LIMIT,
        high=CONTEXT_LIMIT,
        dtype="int32",
    )
    scale = context_scale(node, v) / 2.0**CONTEXT_BITS
    return _value(node, Form(out, name, scale, 0, CONTEXT_LIMIT))


@lowers(Embedding, need=Need(plain=True), preset=_PRESET)
def released_embedding(node: Node[Embedding]) -> IntegerValue:
    """Row lookup in an int8 table with one scale for all rows.

    The row leaves as it is, and the sum that reads it requantises it as it does every term::

        w = embedding(table, ids)  →  w = integer.embedding(ids, table_s8, 1)
    """
    rows = node.context.table_weight("embeddings", node.name)
    if not np.all(rows.scale == rows.scale[0]):
        raise LoweringError(
            "the rows of an embedding have different scales",
            where=node.name,
            why="the released code has one scale for a table",
            todo="give all rows one scale",
        )
    table, one = node.in_place_of(0, rows.values), _small(node, "one", 1)
    out = node.emit(node.operands[1], table, one, shift=0)
    magnitude = int(np.abs(rows.values.astype(np.int64)).max(initial=1))
    return _value(node, Form(out, node.name, rows.scale[:1], 0, magnitude))


@lowers(Gelu, need=Need(operands=(NATIVE,), readable=False, one_sided=True), preset=_PRESET)
def released_i_gelu(node: Node[Gelu]) -> IntegerValue:
    """i-GELU on the int32 accumulator with the fixed shift of 14.

    Emits the published form with its constants per channel, int64 at a negative scale::

        g = gelu(y)  →  g = integer.gelu_paper(y, q_b, q_c, q_1, 14)
    """
    source = node.x.native()
    constants = released_gelu(source.scale)
    shared = replace(constants, erf_shift=constants.erf_shift[:1])
    return _value(node, published_gelu(node, source, shared))


@lowers(LayerNorm, need=Need(operands=(SCALAR,), readable=False), preset=_PRESET)
def released_layer_norm(node: Node[LayerNorm]) -> IntegerValue:
    """Layer normalisation with 2^31 / sigma and a bias of beta / gamma.

    Expects x with one scale and no zero point: the clamped sum. Emits
    ``integer.released_layer_norm``, int64 at the scale ``gamma sqrt(C) / 2^30`` per channel, which
    the table's grid then brings to 8 bits::

        y = layer_norm(x, gamma, beta)  →  n = integer.released_layer_norm(x_s32, offset_s64)
                                           y = integer.requantise_even(n, m, e)
    """
    source, label = node.x.scalar(), f"{node.name}.normalised"
    gamma, beta = node.weight(1), node.weight(2)
    if gamma.ndim > 1:
        raise LoweringError(
            "a layer norm of each head",
            where=node.name,
            why="the released code, whose arithmetic this preset repeats, normalises all "
            "channels of a token",
            todo="quantise the model with the preset 'accurate' or 'paper'",
        )
    offset, scale = layer_norm.offset_and_scale(gamma, beta)
    constants = ReleasedLayerNorm(int(node.context.table.norm_shifts.get(node.name, 0)))
    array = node.parameter("offset", offset)
    out = node.context.emit(integer.released_layer_norm(source.var, array, constants, name=label))
    magnitude = layer_norm.NORMALISED_LIMIT + int(np.abs(offset).max())
    return _value(node, Form(out, label, scale, 0, magnitude))


@lowers(Linear, need=LINEAR, preset=_PRESET)
def released_linear(node: Node[Linear]) -> IntegerValue:
    """``x W^T + b`` as in the other presets, with the bias rounded as the released code does.

    It forms ``round((1 / S) b)`` in float32, S being the float32 product of the input's and the
    row's scale, halves to even. A bias is a number that is stored, so its float32 rounding counts.
    """
    return _value(node, accumulator(node, _released_bias))


def _released_bias(
    name: str, bias: NDArray[np.floating], quant: ActivationQuant, rows: WeightQuant
) -> NDArray[np.int64]:
    """Bias in units of the accumulator; the input has no zero point."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        unit = np.float32(quant.scale) * rows.scale.astype(np.float32)
        steps = np.rint(np.float32(1.0) / unit * np.asarray(bias, np.float32))
    bad = np.flatnonzero(~(np.abs(steps) < 2.0**31))
    if bad.size:
        channel = int(bad[0])
        raise RangeError(
            f"the bias of channel {channel} is {float(bias[channel]):.6g}, which is "
            f"{float(steps[channel]):.6g} units of its accumulator",
            where=name,
            why="an accumulator is int32; the released code would cut the bias off",
            todo="the weights of this row are all but 0: prune the channel, or quantise the "
            "float weights with calibration",
        )
    return steps.astype(np.int64)
