"""Products of more than 32 bits from their halves: the same integers, and no lane of 64 bits."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ibert_tvm.relay_passes.spec.fixed_point import requantise, requantise_clamped
from ibert_tvm.relay_passes.spec.halves import Halves
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants, normalise
from ibert_tvm.relay_passes.spec.values import Ranged, trace

Operands = list[tuple[np.ndarray, int, int]]
NORM = LayerNormConstants.from_scale(1e-3, 1e-12, 384)


def operands(*bits: int) -> Operands:
    """All tuples of ends and middles, and random ones, of signed values of so many bits."""
    random = np.random.default_rng(sum(bits))
    ends = [
        [edge + step for edge in (-(1 << n - 1), 0, (1 << n - 1) - 2) for step in (0, 1)]
        for n in bits
    ]
    listed = np.array(list(itertools.product(*ends)), np.int64).T
    arrays = []
    for n, edges in zip(bits, listed, strict=True):
        limit = 1 << n - 1
        drawn = random.integers(-limit, limit, 2000 - len(edges))
        arrays.append((np.concatenate([edges, drawn]), -limit, limit - 1))
    return arrays


def by(shift: int) -> Callable[[Any, Any], Any]:
    return lambda x, m: requantise(x, m, shift)


CASES: dict[str, tuple[Callable[..., Any], Operands]] = {
    **{f"{n} bits by 31, shifted by {s}": (by(s), operands(n, 31)) for n, s in (
        (16, 16), (20, 31), (29, 30), (29, 31), (31, 32), (32, 33), (32, 34), (32, 47)
    )},
    "16 bits by a constant": (lambda x: requantise(x, 2**30 + 12_345, 30), operands(16)),
    "a constant by 31 bits": (lambda m: requantise(2**30 + 12_345, m, 33), operands(31)),
    "a sum that keeps its lower half": (by(31), operands(30, 31)),
    "clamped, of more than 32 bits": (
        lambda x, m: requantise_clamped(x, m, 20, 0, -(2**19), 2**19),
        operands(32, 31),
    ),
    "normalisation": (
        lambda d, r: normalise(d, r + 2**39, 2**14 - 3, 12_345, NORM, 13, -32767, 32767),
        operands(22, 40),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_integers_are_those_of_the_specification(both_domains, name: str) -> None:
    function, given = CASES[name]
    both_domains(function, *given, arithmetic=Halves())


@pytest.mark.parametrize("name", CASES)
def test_no_lane_has_64_bits(name: str) -> None:
    from tvm import tirx

    function, given = CASES[name]
    halves = Halves()
    values = [
        Ranged(low, high, tirx.Var("x", "int64" if high >> 31 else "int32"), arithmetic=halves)
        for _, low, high in given
    ]
    text = str(trace(function, *values).expr)
    assert "ibert_high_product" in text
    # What is left is said of the reciprocal of a row.
    assert "int64" not in re.sub(r"T\.int64\(\d+\)", "", text) or name == "normalisation"


def test_a_product_that_is_used_in_another_way_stays_as_it_is() -> None:
    from tvm import tirx

    halves = Halves()
    x, y = (Ranged(-(2**31), 2**31 - 1, tirx.Var(n, "int32"), arithmetic=halves) for n in "xy")
    for function in (
        lambda a, b: (a * b) >> 31,
        lambda a, b: (a * b + 3) >> 31,
        lambda a, b: a * b + b,
        lambda a, b: requantise(a, b, 20) >> 12,
        lambda a, _: requantise(a, a, 31) >> 1,
    ):
        assert "ibert_high_product" not in str(trace(function, x, y).expr)
