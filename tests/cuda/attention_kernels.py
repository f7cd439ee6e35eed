"""Attention as a single kernel, with inputs and what the specification says of them.

Emitted as the compiler emits it for a model. Scales are such that a softmax of random numbers is
neither flat nor a single key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.dialect.heads import UNBOUNDED
from ibert_tvm.relay_passes.emit.group import GroupEmitter
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.spec.exponential import Exponential, PolynomialExponential
from ibert_tvm.relay_passes.spec.released import ReleasedExponential
from ibert_tvm.relay_passes.spec.score_cap import ScoreCap, capped_scale
from ibert_tvm.relay_passes.spec.short_requantise import ShortFactors, short_factors
from ibert_tvm.relay_passes.spec.short_softmax import VALUE_LIMIT, ShortExponential
from ibert_tvm.targets import TargetDescription
from tests.lowering import layout_of

PRESETS = ("accurate", "paper", "released")
_CONTEXT_LIMIT = 2**15


@dataclass(frozen=True)
class AttentionCase:
    """One attention to test.

    Attributes
    ----------
    preset
        Whose softmax, of `PRESETS`.
    batch, seq_len, heads, head_dim
        Sizes.
    sharing
        Heads of the queries that read the same head of the keys and values.
    mask
        Type of the mask; empty for none.
    padded
        Keys of each sequence that count, the last sequence first; others count whole. 0 masks all.
    merged
        Whether q, k and v are runs of channels of one array.
    wide
        Whether values have 16 bits; queries and keys alone may be merged, then.
    dtype
        Of the result.
    spread
        Standard deviation of the scores: how far exponentials are apart.
    extreme
        Entries are -128 and 127 only.
    constant
        All entries, if it is not 0.
    multiplier_bits, shift
        Of the requantisation of the preset ``paper``; above 15 bits it is in 64 bits.
    before, after
        Window: how far keys lie from their query at most.
    bias
        "distance" for a table by distance of each head, "shared" for one of all heads, "pairs" for
        one by query and key; empty for none.
    pairs
        Whether a mask says which keys each query of each sequence sees.
    terms
        Computed terms of the scores: of "query_term" and "key_term".
    cap
        Bound of the scores behind a hyperbolic tangent; 0 for none.
    seed
        Of the numbers.
    """

    preset: str = "accurate"
    batch: int = 1
    seq_len: int = 32
    heads: int = 2
    head_dim: int = 32
    sharing: int = 1
    mask: str = "int64"
    padded: tuple[int, ...] = ()
    merged: bool = True
    wide: bool = False
    dtype: str = "int8"
    spread: float = 2.0
    extreme: bool = False
    constant: int = 0
    multiplier_bits: int = 14
    shift: int = 20
    before: int = UNBOUNDED
    after: int = UNBOUNDED
    bias: str = ""
    pairs: bool = False
    terms: tuple[str, ...] = ()
    cap: float = 0.0
    seed: int = 0


@dataclass(frozen=True, eq=False)
class AttentionKernel:
    """A kernel and what it must answer.

    Attributes
    ----------
    func
        Unscheduled; its buffers are `inputs` and then the result.
    inputs
        Arrays to call it with.
    expected
        [tokens, channels].
    """

    func: tirx.PrimFunc
    inputs: list[NDArray[np.generic]] = field(repr=False)
    expected: NDArray[np.generic] = field(repr=False)

    @property
    def arguments(self) -> list[NDArray[np.generic]]:
        """Inputs, and an array for the result that has none of its numbers."""
        return [*self.inputs, np.full_like(self.expected, 77)]

    def check(self, arguments: Sequence[NDArray[np.generic]]) -> None:
        """Compare what the kernel left in its arguments with what it must answer."""
        np.testing.assert_array_equal(arguments[-1], self.expected)


def attention_kernel(
    target: TargetDescription, case: AttentionCase, evaluated: bool = True
) -> AttentionKernel:
    """Emit a kernel for a target, and evaluate it by the specification unless told otherwise."""
    random = np.random.default_rng(case.seed)
    channels = case.heads * case.head_dim
    tokens = (case.batch, case.seq_len)
    arrays: dict[str, NDArray[np.generic]] = {}
    bounds = {}
    widths = dict(zip("qkv", (channels, *2 * [channels // case.sharing]), strict=True))
    arrays_of = {"qkv": sum(widths.values())} if case.merged else widths
    if case.wide and case.merged:
        widths = {name: widths[name] for name in "qk"}
        arrays_of = {"qkv": sum(widths.values()), "v": channels // case.sharing}
    for name, width in arrays_of.items():
        wide = case.wide and name == "v"
        low, high, dtype = (-VALUE_LIMIT, VALUE_LIMIT, "int16") if wide else (-128, 127, "int8")
        entries = random.integers(max(low, -high), high + 1, (*tokens, width))
        if case.extreme:
            entries = random.choice([low, high], (*tokens, width))
        if case.constant:
            entries = np.full((*tokens, width), low if wide else case.constant)
        arrays[name] = entries.astype(dtype)
        bounds[name] = (low, high)
    if case.mask:
        mask = np.ones(tokens, case.mask)
        for sequence, kept in enumerate(case.padded):
            mask[case.batch - 1 - sequence, kept:] = 0
        arrays["mask"] = mask
        bounds["mask"] = (0, 1)
    if case.pairs:
        arrays["pair_mask"] = random.integers(0, 2, (*tokens, case.seq_len)).astype("int8")
        bounds["pair_mask"] = (0, 1)
    for name in case.terms:
        largest = int(2 / _scale(case))
        shape = (*tokens, case.heads, case.seq_len)
        arrays[name] = random.integers(-largest, largest, shape).astype("int32")
        bounds[name] = (-largest, largest)
    parameters = {"multiplier": _multiplier(case, random, channels)}
    if case.bias:
        parameters["bias"] = _bias(case, random)
    inputs = {
        name: relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
        for name, array in arrays.items()
    }
    constants = {
        name: relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
        for name, array in parameters.items()
    }
    builder = relax.BlockBuilder()
    attrs = {"num_input": len(inputs), "ibert.kernel": "attention", "ibert.layer": "attention"}
    with builder.function("main", [*inputs.values(), *constants.values()], attrs=attrs):
        with builder.dataflow():
            operands = [
                inputs[name]
                if name in inputs
                else builder.emit(run_of(inputs["qkv"], name, widths))
                for name in "qkv"
            ]
            build = integer.capped_attention if case.cap else integer.attention
            call = build(
                *operands,
                mask=inputs.get("mask"),
                pair_mask=inputs.get("pair_mask"),
                query_term=inputs.get("query_term"),
                key_term=inputs.get("key_term"),
                **constants,
                **_attributes(case),
            )
            output = builder.emit_output(builder.emit(call))
        builder.emit_func_output(output)
    module = relax.transform.Normalize()(builder.get())
    emitter = GroupEmitter(layout_of(target), parameters, bounds, case.batch)
    expected: NDArray[np.generic] = np.zeros((*tokens, channels), case.dtype)
    if evaluated:
        (expected,) = evaluate(module, arrays, parameters)
    return AttentionKernel(
        emitter.emit(module["main"]),
        [*map(_stored, arrays.values()), *parameters.values()],
        _stored(expected),
    )


def run_of(merged: relax.Var, name: str, widths: dict[str, int]) -> relax.Call:
    """One of q, k and v as a run of channels of one array, as `merge_projections` writes it."""
    index = list(widths).index(name)
    if len({*widths.values()}) == 1:
        return integer.split_channels(merged, name=name, index=index, parts=len(widths))
    first = sum(list(widths.values())[:index])
    return integer.channel_run(merged, name=name, first=first, channels=widths[name])


def _scale(case: AttentionCase) -> float:
    """Scale of the scores that a softmax is taken of."""
    return capped_scale(case.cap) if case.cap else _product_scale(case)


def _product_scale(case: AttentionCase) -> float:
    """Scale of products of random entries, with the wanted deviation."""
    deviation = 128.0**2 if case.extreme else 127.0**2 / 3
    return case.spread / (deviation * case.head_dim**0.5)


def _attributes(case: AttentionCase) -> dict[str, object]:
    low, high = {
        "int8": (-127, 127),
        "uint8": (0, 255),
        "int16": (-2000, 2000),
        "int32": (-_CONTEXT_LIMIT, _CONTEXT_LIMIT),
    }[case.dtype]
    exponential: Exponential | ShortExponential
    if case.preset == "accurate":
        exponential = ShortExponential.from_scale(_scale(case))
        shift = int(_short_factors(case, np.random.default_rng(0), 1).shift)
    elif case.preset == "paper":
        exponential = PolynomialExponential.from_scale(_scale(case))
        shift = case.shift
    else:
        scale = _scale(case)
        top = np.floor(1.0 / 0.35815147 / scale**2) * 2.0**30
        exponential = ReleasedExponential.from_scales(scale, top / 32767)
        shift = 0
    return {
        "name": "attention",
        "num_heads": case.heads,
        "softmax": "short" if case.preset == "accurate" else "normalised",
        "exponential": exponential,
        "shift": shift,
        "low": low,
        "high": high,
        "dtype": case.dtype,
        "zero_point": 128 if case.dtype == "uint8" else 0,
        "before": case.before,
        "after": case.after,
        **({"cap": ScoreCap.from_scale(_product_scale(case), case.cap)} if case.cap else {}),
    }


def _bias(case: AttentionCase, random: np.random.Generator) -> NDArray[np.generic]:
    """As much as scores differ by; of more positions than there are tokens."""
    positions = case.seq_len + 3
    heads = 1 if case.bias == "shared" else case.heads
    by_pair = case.bias == "pairs"
    shape = (heads, positions, positions) if by_pair else (heads, 2 * positions - 1)
    largest = int(2 / _scale(case))
    return random.integers(-largest, largest, shape).astype("int32")


def _short_factors(case: AttentionCase, random: np.random.Generator, channels: int) -> ShortFactors:
    reals = random.uniform(0.02, 0.03, channels)
    return short_factors(reals, 2**14, -127, 127)


def _multiplier(
    case: AttentionCase, random: np.random.Generator, channels: int
) -> NDArray[np.generic]:
    if case.preset == "accurate":
        return _short_factors(case, random, channels).multipliers
    if case.preset == "released":
        return np.array([1], "int32")
    bits = case.multiplier_bits
    return random.integers(1 << (bits - 1), 1 << bits, channels).astype("int32")


def _stored(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """As kernels pass values on: tokens of all sequences are one axis."""
    return np.ascontiguousarray(array.reshape(-1, array.shape[-1]) if array.ndim == 3 else array)
