"""Lowering of attention."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from tvm import relax

from ... import integer
from ...canonical.operators.attention import Attention
from ...canonical.operators.pools import AttentionPool
from ...dialect.arrays import Reals
from ...dialect.calls import operands_of
from ...errors import LoweringError, RangeError
from ...quantization_table import ActivationQuant
from ...spec import short_softmax, softmax
from ...spec.distance_term import distance_table
from ...spec.exponential import PolynomialExponential
from ...spec.fixed_point import DyadicVector
from ...spec.nearest_scale import finest_scale, largest_error
from ...spec.presets import Preset
from ...spec.score_cap import ScoreCap, capped_scale
from ...spec.short_requantise import ShortFactors, short_factors
from ...spec.short_softmax import ShortExponential
from ..forms import Form, multipliers, stored
from ..rule import FACTOR, FACTOR_BY_CHANNEL, MATMUL, Need, Node, activation, lowers
from ..value import IntegerValue

LARGEST_BIAS = 2**23
"""In units of the scores: half of what separates them from those of masked keys, so the other half
is left for products, whose range is proven with the bias when the model is compiled."""
_LARGEST_DISTANCE = 2**24  # of scores, in steps
OPERANDS = (FACTOR, FACTOR, FACTOR_BY_CHANNEL)
"""How queries, keys and values are read."""


def _need(preset: Preset, call: relax.Call | None) -> Need:
    """Queries and keys, whose products the exponential or the cap must serve."""
    need = Need(operands=OPERANDS, result=(MATMUL,), averages=True)
    if call is None:
        return need
    scale, cap = abs(float(call.attrs["scale"])), float(call.attrs["cap"])

    def finest(bias: float) -> float:
        if cap:
            return finest_scale(lambda product: ScoreCap.from_scale(product, cap)) / scale
        return max(finest_scale(preset.exponential_for), bias / LARGEST_BIAS) / scale

    return replace(need, finest=finest)


def exponential_of(
    node: Node[Attention | AttentionPool], scale: float
) -> ShortExponential | PolynomialExponential:
    """Derive the exponential of scores of a scale."""

    def error(scale: float, served: float) -> float:
        return largest_error(lambda x: np.exp(-np.abs(x)), scale, served, _LARGEST_DISTANCE)

    return node.context.at_served_scale(node.name, node.preset.exponential_for, scale, error)[0]


def _cap_of(node: Node[Attention], scale: float) -> ScoreCap:
    """Derive the cap of scores of a scale."""
    cap = node.operator.cap

    def error(scale: float, served: float) -> float:
        return largest_error(lambda x: cap * np.tanh(x / cap), scale, served, _LARGEST_DISTANCE)

    derive = partial(ScoreCap.from_scale, cap=cap)
    return node.context.at_served_scale(f"{node.name}.cap", derive, scale, error)[0]


@lowers(Attention, need=_need)
def attention(node: Node[Attention]) -> IntegerValue:
    """Masked multi-head attention on int8 queries, keys and values.

    Expects q and k as int8 with one scale each and v as int8, possibly with a scale per channel;
    int16 where its scale is that of wide values and the preset's softmax takes them.
    Emits ``integer.attention`` (specification: `i-exp` and the softmax stages of the preset).
    ``scale`` of the operator is folded in the scale of the scores, S_q S_k scale, to which a bias
    by distance is rounded; the window stays what it is. Vectors for distances are rounded in units
    of the operand that they are added to, k or q, so that their products with the other one have
    the scale of the scores at once; ``integer.distance_products`` computes them. The context
    leaves in its matmul form at once, and what the table takes off v is missing in it, since the
    weights of a token sum to 1: its reader adds it. The multiplier per channel is ``S_v[c] /
    S_out[c]`` and the fraction bits of the softmax form, so smoothing of the context and V's own
    channel scales cost nothing. Capped scores have a scale of their own, to which the bias is
    rounded and of which the exponential is taken: ``integer.capped_attention``. The native form is
    int8::

        c = attention(q, k, v, mask, b)  →  c = integer.attention(q_s8, k_s8, v_s8, mask, m_s32,
                                                                  b_s32)
    """
    name, attributes = node.name, node.operator
    q, k = (activation(operand).matmul() for operand in node.operands[:2])
    v = activation(node.operands[2]).shifted()
    for label, form in (("queries", q), ("keys", k), ("values", v)):
        wide = label == "values" and node.preset.softmax == "short"
        check_operand(label, form, name, per_tensor=label != "values", may_be_wide=wide)
    given, quant = operands_of(node.call), node.entry("matmul")
    score_scale = float(q.scale[0] * k.scale[0]) * attributes.scale
    build, more = integer.attention, {}
    if attributes.cap:
        more = {"cap": _cap_of(node, score_scale)}
        build, score_scale = integer.capped_attention, capped_scale(attributes.cap)
    exponential = exponential_of(node, score_scale)
    ratio = context_scale(node, v) / quant.channel_scale
    factors = context_factors(ratio, node.preset, quant)
    out = node.context.emit(
        build(
            q.var,
            k.var,
            v.var,
            node.operands[3] if "attention_mask" in given else None,
            node.parameter("multiplier", factors.multipliers),
            bias=_bias(node, given.get("bias"), score_scale),
            query_term=_term(node, given, "key_positions", q, k),
            key_term=_term(node, given, "query_positions", k, q),
            name=name,
            num_heads=attributes.num_heads,
            softmax=node.preset.softmax,
            exponential=exponential,
            shift=factors.shift,
            before=attributes.before,
            after=attributes.after,
            **stored(quant),
            **more,
        )
    )
    form = Form.of(out, name, quant)
    if isinstance(factors, ShortFactors):
        form = replace(form, excess=factors.excess)
    if v.offset is not None:
        form = replace(form, offset=_by_context(node, v.offset), readable=False)
    return node.value(form)


def _term(
    node: Node[Attention], given: dict[str, relax.Expr], label: str, x: Form, other: Form
) -> relax.Var | None:
    """Products of x with the vectors for distances that are added to `other`."""
    if label not in given:
        return None
    context, name, heads = node.context, f"{node.name}.{label}", node.operator.num_heads
    vectors = context.weight(given[label], name)
    if label == "query_positions":  # a key counts distances to queries
        vectors = vectors[::-1]
    table = context.guard(name, lambda: distance_table(vectors, float(other.scale[0]), heads))
    entries = context.parameter(f"{name}.table", table.entries)
    attributes = {"name": name, "num_heads": heads, "shift": table.shift}
    return context.emit(integer.distance_products(x.var, entries, **attributes))


def context_scale(node: Node[Attention], v: Form) -> Reals:
    """Scale of the values' 8 bits by channel of the context, whose heads may share the values'."""
    bytes_ = np.ldexp(v.scale, short_softmax.VALUE_BITS) if is_wide(v) else v.scale
    return bytes_ if v.per_tensor else _by_context(node, bytes_)


def is_wide(v: Form) -> bool:
    """Whether values have more than 8 bits."""
    return str(v.var.ty.dtype) == "int16"


def _by_context(node: Node[Attention], of_values: Reals) -> Reals:
    """Numbers of the values' channels by channel of the context."""
    channels, heads = int(node.call.ty.shape.values[-1]), node.operator.num_heads
    by_head = of_values.reshape(-1, channels // heads)
    return by_head.repeat(heads // len(by_head), axis=0).reshape(-1)


def context_factors(
    ratio: Reals, preset: Preset, quant: ActivationQuant
) -> ShortFactors | DyadicVector:
    """Requantisation of the context, whose values have fraction bits, from V's to its own scale.

    Parameters
    ----------
    ratio : numpy.ndarray
        V's scale over that of the context, [channels] or [1].
    preset
        Whose softmax gives the context.
    quant
        The context.

    Returns
    -------
    ShortFactors or DyadicVector
        As the preset's arithmetic has them.

    Raises
    ------
    RangeError
        If a ratio does not fit.
    """
    if preset.softmax == "short":
        reals = ratio / 2.0**short_softmax.CONTEXT_BITS
        limits = quant.low, quant.high, quant.zero_point
        return short_factors(reals, 2**14, *limits, least_bits=1)
    return multipliers(ratio / 2.0**softmax.CONTEXT_BITS, softmax.CONTEXT_LIMIT - 1, 8)


def _bias(
    node: Node[Attention], argument: relax.Expr | None, score_scale: float
) -> relax.Var | None:
    """The bias in units of the scores, a parameter of the attention."""
    if argument is None:
        return None
    bias = np.asarray(node.context.weight(argument, node.name), np.float64)
    steps = np.floor(bias / score_scale + 0.5)
    largest = float(np.abs(steps).max(initial=0.0))
    if not largest <= LARGEST_BIAS:  # also when it is NaN
        raise RangeError(
            f"the bias of the scores reaches {largest:.0f} steps",
            where=node.name,
            why=f"a step is one unit of the scores, {score_scale:.3g}, and beyond {LARGEST_BIAS} "
            "of them scores come near those of masked keys",
            todo="calibrate with inputs that reach the usual range of queries and keys",
        )
    return node.parameter("bias", steps.astype(np.int32))


def check_operand(
    label: str, form: Form, name: str, per_tensor: bool, may_be_wide: bool = False
) -> None:
    """Refuse an operand of attention that is not symmetric int8, or has the wrong scales.

    Parameters
    ----------
    label
        "queries", "keys" or "values".
    form
        The operand.
    name
        The attention.
    per_tensor
        Whether it must have one scale.
    may_be_wide
        Whether it may be int16.

    Raises
    ------
    LoweringError
    """
    dtypes = ("int8", "int16") if may_be_wide else ("int8",)
    if form.zero_point != 0 or str(form.var.ty.dtype) not in dtypes:
        raise LoweringError(
            f"the {label} are {form.var.ty.dtype} with zero point {form.zero_point}",
            where=name,
            why="the matrix products of attention take symmetric int8",
            todo="quantise queries, keys and values symmetrically",
        )
    if per_tensor and not np.all(form.scale == form.scale[0]):
        raise LoweringError(
            f"the {label} have a scale per channel",
            where=name,
            why="the dot product of queries and keys sums over channels",
            todo="give queries and keys one scale each",
        )
