"""Activation functions are recognised by their values, however they are written."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.frontend.canonicalise.functions import GRID, UNARY, name_function, slope

F32 = np.float32
ERF = UNARY["relax.erf"]
SQRT_HALF = float(F32(0.7071067811865476))
TANH_SCALE = float(F32(0.7978845608028654))


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        (0.5 * GRID * (1 + ERF(GRID / 1.4142135381698608)), ("gelu", {"form": "erf"})),
        (GRID * (ERF(GRID * SQRT_HALF) + 1) * 0.5, ("gelu", {"form": "erf"})),
        (GRID * 0.5 + GRID * 0.5 * ERF(SQRT_HALF * GRID), ("gelu", {"form": "erf"})),
        (
            0.5 * GRID * (1 + np.tanh(TANH_SCALE * (GRID + float(F32(0.044715)) * GRID**3))),
            ("gelu", {"form": "tanh"}),
        ),
        (
            0.5 * GRID * (1 + np.tanh(GRID * TANH_SCALE * (1 + 0.044715 * GRID * GRID))),
            ("gelu", {"form": "tanh"}),
        ),
        (UNARY["relax.nn.gelu"](GRID), ("gelu", {"form": "erf"})),
        (UNARY["relax.nn.gelu_tanh"](GRID), ("gelu", {"form": "tanh"})),
        (np.maximum(GRID, 0), ("relu", {})),
        ((GRID + np.abs(GRID)) / 2, ("relu", {})),
        (np.tanh(GRID), ("tanh", {})),
        (2 / (1 + np.exp(-2 * GRID)) - 1, ("tanh", {})),
        (GRID / (1 + np.exp(-float(F32(1.702)) * GRID)), ("silu", {"beta": 1.702})),
        (GRID / (1 + np.exp(-GRID)), ("silu", {"beta": 1.0})),
        (0.5 * GRID * (1 + np.tanh(0.5 * GRID)), ("silu", {"beta": 1.0})),
        (1 / (1 + np.exp(-GRID)), ("sigmoid", {})),
        (0.5 * np.tanh(GRID / 2) + 0.5, ("sigmoid", {})),
        (1 / (1 + np.exp(-2 * GRID)), None),
        (GRID / (1 + np.exp(-50 * GRID)), None),
        (GRID * np.clip(GRID / 6 + 0.5, 0, 1), None),
        (np.where(GRID > 0, GRID, 0.01 * GRID), ("leaky_relu", {"slope": 0.01})),
        (np.clip(GRID, 0, 6), None),
        (0.5 * GRID * (1 + ERF(GRID)), None),
        (1.00001 * np.maximum(GRID, 0), None),
        (np.full_like(GRID, np.nan), None),
    ],
)
def test_spellings(samples, expected):
    assert name_function(samples) == expected


def test_slope():
    assert slope(GRID * -0.25) == -0.25
    assert slope(GRID * 0.0) == 0.0
    assert slope(GRID + 1e-3) is None
    assert slope(np.abs(GRID)) is None
