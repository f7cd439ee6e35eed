"""Polynomials of one value of 16 bits, compiled: on every value, with all constants that there are.

A scale decides one constant only, the shift that brings the limit to 15 bits, so that eleven cases
are all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ibert_tvm.relay_passes.spec.arithmetic import VECTORS
from ibert_tvm.relay_passes.spec.clipped import CLIPPED_TOP, ClippedFunction, ClippedPolynomial
from ibert_tvm.relay_passes.spec.gelu import GELU, gelu_accurate
from ibert_tvm.relay_passes.spec.logistic import SIGMOID, SILU, sigmoid, silu
from tests.examples import examples
from tests.spec.conftest import both_domains  # noqa: F401  (a fixture)

from .solver import ARITHMETICS

Function = Callable[[Any, ClippedPolynomial], Any]
FUNCTIONS: dict[str, tuple[Function, ClippedFunction, int]] = {
    "gelu": (gelu_accurate, GELU, 2**15 - 1),
    # These two cut their input themselves.
    "silu": (silu, SILU, 2**15 + 100),
    "sigmoid": (sigmoid, SIGMOID, 2**15 + 100),
}
SHIFTS = range(11)


def test_these_are_all_constants() -> None:
    """Beta of SiLU changes the limit and the scale together."""
    for _, function, _ in FUNCTIONS.values():
        unit = function.limit / CLIPPED_TOP
        assert [function.up_shift(unit * 2.0**k) for k in (-1, *SHIFTS, 11)] == [
            None,
            *SHIFTS,
            None,
        ]
        for beta in (0.5, 1.702):
            other = function.of_multiple(beta)
            assert ClippedPolynomial.from_scale(8 * unit / beta, other) == (
                ClippedPolynomial.from_scale(8 * unit, function)
            )


@pytest.mark.parametrize(
    ("name", "arithmetic"), examples([(n, a) for n in FUNCTIONS for a in ARITHMETICS], unpack=True)
)
def test_every_value(both_domains: Callable[..., Any], name: str, arithmetic: str) -> None:  # noqa: F811
    function, polynomial, largest = FUNCTIONS[name]
    values = np.arange(-largest, largest + 1)
    lanes = ARITHMETICS[arithmetic] is VECTORS
    for shift in SHIFTS:
        scale = polynomial.limit / CLIPPED_TOP * 2.0**shift
        constants = ClippedPolynomial.from_scale(scale, polynomial)
        both_domains(
            lambda q, k=constants: function(q, k),
            (values, -largest, largest),
            vectorise=lanes,
            arithmetic=ARITHMETICS[arithmetic],
        )
