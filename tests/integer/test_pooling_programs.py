"""Random programs of poolings, joined and scaled to length 1: three domains and compiled code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.passes.pack_tokens import PackTokens
from ibert_tvm.relay_passes.spec.exponential import PolynomialExponential
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.logarithm import Logarithm
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from tests.examples import examples
from tests.passes.execution import captured_in_intervals, check_compiled, inputs_of
from tests.passes.models import ProgramBuilder
from tests.passes.small import CHANNELS, small_program


def seen_by_a_query(p: ProgramBuilder, x: relax.Var, mask: relax.Var, seed: int) -> relax.Call:
    """The value in 8 bits, weighted by the softmax of itself: each channel is a head."""
    factors = p.integers("byte.multiplier", 2**13, 2**14, (CHANNELS,), "int32")
    bounds = {"low": -127, "high": 127}
    v = p.emit(integer.requantise(x, factors, name="byte", shift=20, dtype="int8", **bounds))
    wide = {"shift": 14, "low": -(2**14), "high": 2**14, "dtype": "int16"}
    scores = p.emit(integer.requantise(x, factors, name="scores", **wide))
    short = seed % 2 == 0
    low, dtype = (2**14, "int16") if short else (2**13, "int32")
    return integer.attention_pool(
        scores,
        v,
        p.integers("seen.multiplier", low, 2 * low - 1, (CHANNELS,), dtype),
        mask,
        name="seen",
        exponential=(ShortExponential if short else PolynomialExponential).from_scale(1e-3),
        shift=7 if short else 21,
        dtype="int8",
        **bounds,
    )


def attended(p: ProgramBuilder, x: relax.Var, mask: relax.Var) -> relax.Var:
    """What two heads see of the value."""
    factors = p.integers("qkv.multiplier", 2**13, 2**14, (CHANNELS,), "int32")
    byte = {"shift": 20, "low": -127, "high": 127, "dtype": "int8"}
    qkv = [p.emit(integer.requantise(x, factors, name=name, **byte)) for name in "qkv"]
    multiplier = p.integers("context.multiplier", 2**14, 2**15 - 1, (CHANNELS,), "int16")
    wide = {"shift": 3, "low": -(2**13), "high": 2**13, "dtype": "int16"}
    return p.attention("context", qkv, mask, multiplier, **wide)


def program(seed: int, whole: bool = True) -> IntegerProgram:
    """Every pooling of one value; two of them joined, normalised, and a logarithm of a maximum.

    And poolings of the `whole` sequence, padding included, or else attention before.
    """

    def body(p: ProgramBuilder, inputs: Mapping[str, relax.Var]) -> Sequence[relax.Var]:
        mask = inputs["attention_mask"]
        x = p.words(inputs["input_ids"], CHANNELS, 8)
        x = x if whole else attended(p, x, mask)
        gain = p.integers("gain", 2**12, 2**13, (2 * CHANNELS,), "int32")
        largest = p.emit(integer.max_pool(x, mask, name="max"))
        last = p.emit(integer.last_token(x, mask, name="last"))
        seen = p.emit(seen_by_a_query(p, x, mask, seed))
        weighted = p.emit(integer.weighted_mean_pool(x, mask, name="weighted", fraction_bits=5))
        root = p.emit(integer.sqrt_mean_pool(x, mask, name="root", fraction_bits=5))
        every = []
        if whole:
            every = [
                p.emit(integer.max_pool(x, name="unmasked max")),
                p.emit(integer.weighted_mean_pool(x, name="unmasked", fraction_bits=3)),
            ]
        joined = p.emit(integer.concatenate(weighted, last, name="joined"))
        constants = LayerNormConstants.from_scale(1e-3, 0.0, 2 * CHANNELS)
        stored = {"shift": 14, "low": -32767, "high": 32767, "dtype": "int16"}
        unit = p.emit(integer.rms_norm(joined, gain, constants, name="unit", **stored))
        short = p.emit(
            integer.requantise(
                largest,
                p.integers("m", 1, 2**30, (CHANNELS,), "int32"),
                name="short",
                shift=30,
                low=-(2**14) + 1,
                high=2**14 - 1,
                dtype="int16",
            )
        )
        logarithm = Logarithm.from_scale(2.0 ** -(seed + 3), 2**14 - 1)
        saturated = p.emit(integer.log1p_relu(short, logarithm, name="log"))
        return [largest, last, seen, weighted, root, *every, unit, saturated]

    return small_program(body, seed)


@pytest.mark.parametrize("seed", range(2))
def test_unpadded_programs_give_the_same(seed: int) -> None:
    p = program(seed, whole=False)
    packed = PackTokens()(p)
    assert packed is not p
    ids, mask = inputs_of(3, 7, 50, seed)
    mask[2] = mask[2, ::-1]
    inputs = {"input_ids": ids, "attention_mask": mask}
    expected = evaluate(p.module, inputs, p.parameters)
    for got, want in zip(evaluate(packed.module, inputs, p.parameters), expected, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_leaves_its_interval(seed: int) -> None:
    p = program(seed)
    ids, mask = inputs_of(3, 5, 50, seed)
    captured_in_intervals(p, {"input_ids": ids, "attention_mask": mask}, 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", examples(["x86-avx512-vnni", "x86-64-v3", "x86-64"], "x86-64-v3")
)
def test_compiled_programs_equal_the_specification(target: str) -> None:
    ids, mask = inputs_of(3, 7, 50, 1)
    mask[2] = mask[2, ::-1]  # padding in front
    check_compiled(program(1), target, ids, mask)
