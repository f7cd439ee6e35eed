"""Compiled kernels equal the NumPy evaluation of the integer specification, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.examples import examples
from tests.passes.execution import Compiled, inputs_of, reference
from tests.passes.models import ENCODERS, VOCABULARY, encoder_program

SHAPES = [(1, 1), (1, 17), (3, 16), (3, 33)]
TARGETS = ("x86-avx512-vnni", "x86-64-v3", "x86-64")
DEFAULT = [("paper", "x86-64-v3", [(3, 16)])]
ALL = [*itertools.product(ENCODERS, TARGETS, [SHAPES])]
ALL += [("odd", "x86-avx-vnni", SHAPES), ("odd", "x86-amx", SHAPES)]


@pytest.mark.parametrize(
    ("model", "target", "shapes"),
    examples(
        [*DEFAULT, *ALL],
        *DEFAULT,
        otherwise="record",
        # One model on every target; the others on these in turn.
        slow=[
            case
            for case in ALL
            if case[0] == "odd" or case[1] == TARGETS[[*ENCODERS].index(case[0]) % 2]
        ],
        unpack=True,
    ),
)
def test_compiled_program_equals_its_evaluation(
    model: str, target: str, shapes: list[tuple[int, int]]
) -> None:
    program = encoder_program(**ENCODERS[model], seed=3)
    compiled = Compiled(program, target, shapes)
    for batch, seq_len in shapes:
        ids, mask = inputs_of(batch, seq_len, VOCABULARY, seed=batch * seq_len)
        expected = reference(program, ids, mask)
        for got, want in zip(compiled(ids, mask), expected, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
            assert np.unique(want).size > 3, "a constant output would prove nothing"


@pytest.mark.slow
def test_padding_does_not_change_real_tokens() -> None:
    program = encoder_program(**ENCODERS["even"], seed=5)
    compiled = Compiled(program, "host", [(1, 9), (1, 16)])
    ids, mask = inputs_of(1, 9, VOCABULARY, seed=1)
    padded_ids, padded_mask = np.zeros((1, 16), "int32"), np.zeros((1, 16), "int32")
    padded_ids[:, :9], padded_mask[:, :9] = ids, mask
    short, long = compiled(ids, mask), compiled(padded_ids, padded_mask)
    np.testing.assert_array_equal(short[0], long[0][:, :9])
    for a, b in zip(short[1:], long[1:], strict=True):
        np.testing.assert_array_equal(a, b)
