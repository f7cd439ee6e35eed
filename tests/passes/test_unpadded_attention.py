"""Attention that depends on distances, in programs that leave out padding: positions stay."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.spec.fixed_point import dyadic_vector
from ibert_tvm.relay_passes.spec.short_requantise import short_factors
from ibert_tvm.targets import get_target
from tests.examples import examples
from tests.lowering import lowered
from tests.passes.execution import Compiled
from tests.passes.small import CHANNELS, kernels, small_program
from tests.twins import runnable_target

POSITIONS, SHAPE = 96, (3, 72)


def program(bias: bool, short: bool = True, sharing: int = 1, **window: int) -> IntegerProgram:
    """Two heads of attention over random embeddings, that may share keys; masked outputs."""

    def body(p: Any, inputs: Mapping[str, relax.Var]) -> list[relax.Var]:
        def rows(name: str, channels: int) -> relax.Var:
            return p.words(inputs["input_ids"], channels, 14, name)

        x = rows("word", CHANNELS)
        y = x if sharing == 1 else rows("other", CHANNELS // sharing)
        operands = (("q", x, 0.9), ("k", y, 0.7), ("v", y, 1.0))
        heads = [p.requantise(name, source, gain) for name, source, gain in operands]
        out = short_factors(np.full(CHANNELS, 0.008), 2**14, -127, 127)
        factors = out if short else dyadic_vector(np.full(CHANNELS, 0.004), 15)
        terms = {}
        if bias:
            shape = (2, 2 * POSITIONS - 1)
            terms["bias"] = p.integers("bias", -9000, 9000, shape, "int32")
        multiplier = p.parameter("multiplier", factors.multipliers)
        given = {"short": short, "scale": 2e-4, "shift": factors.shift, **terms, **window}
        y = p.attention("attended", heads, inputs["attention_mask"], multiplier, **given)
        return [p.emit(integer.mask_tokens(y, inputs["attention_mask"], name="out"))]

    return small_program(body)


def batch() -> dict[str, np.ndarray]:
    """A whole sequence, one padded at the end, and one with holes and padding in front."""
    random = np.random.default_rng(0)
    mask = np.ones(SHAPE, "int32")
    mask[1, 7:] = 0
    mask[2, [0, 1, 5, 6, 7, 15, *range(20, 50)]] = 0
    return {"input_ids": random.integers(2, 50, SHAPE).astype("int32"), "attention_mask": mask}


def next_in_line() -> dict[str, np.ndarray]:
    """Sixteen tokens that look like neighbours by their ends, but are of two sequences."""
    mask = np.zeros(SHAPE, "int32")
    mask[0, [3, 7, 8]] = 1
    mask[1, [*range(12), 3 + 15, *range(30, 50)]] = 1
    mask[2, :5] = 1
    return {**batch(), "attention_mask": mask}


def scattered(count: int) -> list[dict[str, np.ndarray]]:
    """Runs of tokens and holes of any length, in places that differ from sequence to sequence."""
    random, found = np.random.default_rng(1), []
    for _ in range(count):
        mask = np.zeros(SHAPE, "int32")
        for row in mask:
            ends = np.sort(random.choice(SHAPE[1] + 1, 6, replace=False))
            for first, last in ends.reshape(3, 2):
                row[first:last] = 1
        found.append({**batch(), "attention_mask": mask})
    return found


TERMS: list[dict[str, Any]] = [
    {"bias": True},
    {"bias": False, "after": 0},
    {"bias": True, "before": 3, "after": 2},
    {"bias": False, "sharing": 2},
    {"bias": False, "after": 0, "short": False},
    {"bias": True, "before": 3, "after": 2, "short": False},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "terms"),
    examples(
        itertools.product(["x86-avx512-vnni", "x86-amx", "x86-64"], TERMS),
        ("x86-64", TERMS[2]),
        ("x86-amx", TERMS[2]),
        unpack=True,
    ),
    ids=str,
)
def test_positions_are_those_of_the_sequence(terms: dict[str, Any], name: str) -> None:
    p, inputs = program(**terms), batch()
    (expected,) = evaluate(p.module, inputs, p.parameters)
    plain = program(False, terms.get("short", True))
    assert (evaluate(plain.module, inputs, plain.parameters)[0] != expected).any()
    target = runnable_target(name)
    assert "packing.slots" in kernels(lowered(p, target, [SHAPE]).fused.module)
    compiled = Compiled(p, name, [SHAPE])
    for given in (inputs, next_in_line(), *scattered(8)):
        (expected,) = evaluate(p.module, given, p.parameters)
        answer = compiled(given["input_ids"], given["attention_mask"])
        np.testing.assert_array_equal(answer[0], expected)


def test_microcontrollers_compile_the_same_program() -> None:
    target = get_target("cortex-m4")
    made = lowered(program(True, after=0), target, [(1, 20)])
    assert "attended" in kernels(made.fused.module)
