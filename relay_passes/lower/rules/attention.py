"""Lowering of `canonical.attention`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from ... import integer
from ...dialect.calls import operands_of
from ...errors import LoweringError, RangeError
from ...quantization_table import ActivationQuant
from ...spec import short_softmax, softmax
from ...spec.distance_term import distance_table
from ...spec.fixed_point import DyadicVector
from ...spec.presets import Preset
from ...spec.score_cap import ScoreCap, capped_scale
from ...spec.short_requantise import ShortFactors, short_factors
from ..context import LoweringContext
from ..forms import Form, multipliers, storage
from ..rule import FACTOR, FACTOR_BY_CHANNEL, MATMUL, LoweringRule, Need, activation
from ..value import IntegerValue

LARGEST_BIAS = 2**23
"""In units of the scores: half of what separates them from those of masked keys, so the other half
is left for products, whose range is proven with the bias when the model is compiled."""


class LowerAttention(LoweringRule):
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

    op = "canonical.attention"

    def need(self, preset: Preset) -> Need:
        """Reads 8-bit forms and yields one."""
        operands = (FACTOR, FACTOR, FACTOR_BY_CHANNEL)
        return Need(operands=operands, result=(MATMUL,), averages=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        q, k = (activation(operand).matmul() for operand in operands[:2])
        v = activation(operands[2]).shifted()
        for label, form in (("queries", q), ("keys", k), ("values", v)):
            wide = label == "values" and context.preset.softmax == "short"
            check_operand(label, form, name, per_tensor=label != "values", may_be_wide=wide)
        given = operands_of(call)
        quant = context.table_entry("matmul", name)
        product_scale = float(q.scale[0] * k.scale[0]) * float(call.attrs["scale"])
        cap, score_scale = float(call.attrs["cap"]), product_scale
        build, more = integer.attention, {}
        if cap:
            more = {"cap": context.guard(name, lambda: ScoreCap.from_scale(product_scale, cap))}
            build, score_scale = integer.capped_attention, capped_scale(cap)
        exponential = context.guard(name, lambda: context.preset.exponential_for(score_scale))
        ratio = context_scale(call, v) / quant.channel_scale
        factors = context.guard(name, lambda: context_factors(ratio, context.preset, quant))
        out = context.emit(
            build(
                q.var,
                k.var,
                v.var,
                operands[3] if "attention_mask" in given else None,
                context.parameter(f"{name}.multiplier", factors.multipliers),
                bias=_bias(context, given.get("bias"), score_scale, name),
                query_term=self._term(context, call, "key_positions", q, k),
                key_term=self._term(context, call, "query_positions", k, q),
                name=name,
                num_heads=int(call.attrs["num_heads"]),
                softmax=context.preset.softmax,
                exponential=exponential,
                shift=factors.shift,
                low=quant.low,
                high=quant.high,
                dtype=storage(quant),
                zero_point=quant.zero_point,
                before=int(call.attrs["before"]),
                after=int(call.attrs["after"]),
                **more,
            )
        )
        magnitude = max(-quant.low, quant.high)
        form = Form(out, name, quant.channel_scale, quant.zero_point, magnitude)
        if isinstance(factors, ShortFactors):
            form = replace(form, excess=factors.excess)
        if v.offset is not None:
            form = replace(form, offset=_by_context(call, v.offset), readable=False)
        return IntegerValue(context, name, form)

    @staticmethod
    def _term(
        context: LoweringContext, call: relax.Call, label: str, x: Form, other: Form
    ) -> relax.Var | None:
        """Products of x with the vectors for distances that are added to `other`."""
        argument = operands_of(call).get(label)
        if argument is None:
            return None
        name, heads = f"{call.attrs['name']}.{label}", int(call.attrs["num_heads"])
        vectors = context.weight(argument, name)
        if label == "query_positions":  # a key counts distances to queries
            vectors = vectors[::-1]
        table = context.guard(name, lambda: distance_table(vectors, float(other.scale[0]), heads))
        return context.emit(
            integer.distance_products(
                x.var,
                context.parameter(f"{name}.table", table.entries),
                name=name,
                num_heads=heads,
                shift=table.shift,
            )
        )


def context_scale(call: relax.Call, v: Form) -> NDArray[np.float64]:
    """Scale of the values' 8 bits by channel of the context, whose heads may share the values'."""
    bytes_ = np.ldexp(v.scale, short_softmax.VALUE_BITS) if is_wide(v) else v.scale
    return bytes_ if v.per_tensor else _by_context(call, bytes_)


def is_wide(v: Form) -> bool:
    """Whether values have more than 8 bits."""
    return str(v.var.ty.dtype) == "int16"


def _by_context(call: relax.Call, of_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers of the values' channels by channel of the context."""
    channels, heads = int(call.ty.shape.values[-1]), int(call.attrs["num_heads"])
    by_head = of_values.reshape(-1, channels // heads)
    return by_head.repeat(heads // len(by_head), axis=0).reshape(-1)


def context_factors(
    ratio: NDArray[np.float64], preset: Preset, quant: ActivationQuant
) -> ShortFactors | DyadicVector:
    """Requantisation of the context, whose values have fraction bits, from V's to its own scale.

    Parameters
    ----------
    ratio : numpy.ndarray
        V's scale over that of the context, [channels] or [1].
    preset : Preset
        Whose softmax gives the context.
    quant : ActivationQuant
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
    context: LoweringContext, argument: relax.Expr | None, score_scale: float, name: str
) -> relax.Var | None:
    """The bias in units of the scores, a parameter of the attention."""
    if argument is None:
        return None
    steps = np.floor(np.asarray(context.weight(argument, name), np.float64) / score_scale + 0.5)
    largest = float(np.abs(steps).max(initial=0.0))
    if not largest <= LARGEST_BIAS:  # also when it is NaN
        raise RangeError(
            f"the bias of the scores reaches {largest:.0f} steps",
            where=name,
            why=f"a step is one unit of the scores, {score_scale:.3g}, and beyond {LARGEST_BIAS} "
            "of them scores come near those of masked keys",
            todo="calibrate with inputs that reach the usual range of queries and keys",
        )
    return context.parameter(f"{name}.bias", steps.astype(np.int32))


def check_operand(
    label: str, form: Form, name: str, per_tensor: bool, may_be_wide: bool = False
) -> None:
    """Refuse an operand of attention that is not symmetric int8, or has the wrong scales.

    Parameters
    ----------
    label : str
        "queries", "keys" or "values".
    form : Form
        The operand.
    name : str
        The attention.
    per_tensor : bool
        Whether it must have one scale.
    may_be_wide : bool
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
