"""Norms of rows, stage by stage: what each claims follows from what the one before it gives.

The root itself is in `test_square_root`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ibert_tvm.relay_passes.spec import layer_norm, short_layer_norm
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.short_layer_norm import INPUT_LIMIT, ShortLayerNorm
from tests.examples import examples

from .exact import Claims, Exact, claiming, exact, z3
from .solver import ARITHMETICS, prove, prove_traced

INT32 = (-(2**31), 2**31 - 1)
CHANNELS = 384
SHORT = ShortLayerNorm.from_scale(1e-3, 1e-12, CHANNELS)
WIDE = LayerNormConstants.from_scale(1e-3, 1e-12, CHANNELS)
FRACTION = SHORT.root_fraction_bits
ROOT, BITS = (2 << FRACTION, 2**31 - 1), (FRACTION + 1, 30)
SUM = (0, CHANNELS * (2 * INPUT_LIMIT) ** 2)
INPUT, DEVIATION = (-INPUT_LIMIT, INPUT_LIMIT), (-2 * INPUT_LIMIT, 2 * INPUT_LIMIT)
WIDE_INPUT = (-layer_norm.INPUT_LIMIT, layer_norm.INPUT_LIMIT)
AFFINE = {"gain": (-(2**14), 2**14), "offset": (-(2**29), 2**29)}
Intervals = dict[str, tuple[int, int]]

STAGES: dict[str, tuple[Callable[..., Any], Intervals]] = {
    "deviation": (
        lambda y, m: short_layer_norm.deviation(short_layer_norm.bounded(y), m),
        {"y": INT32, "m": INPUT},
    ),
    "square": (short_layer_norm.square, {"d": DEVIATION}),
    "half of the bits": (lambda t: short_layer_norm.root_half_bits(t, SHORT), {"t": SUM}),
    "bits of the root": (lambda s: short_layer_norm.root_bits(s, SHORT), {"s": ROOT}),
    "deviation of 22 bits": (
        lambda y, m: layer_norm.deviation(layer_norm.bounded(y, WIDE), m),
        {"y": INT32, "m": WIDE_INPUT},
    ),
    "normalisation of 22 bits": (
        lambda d, r, gain, offset: layer_norm.normalise(d, r, gain, offset, WIDE, 15, -127, 127),
        {"d": (2 * WIDE_INPUT[0], 2 * WIDE_INPUT[1]), "r": (1, 2**40), **AFFINE},
    ),
}


@pytest.mark.parametrize(
    ("name", "arithmetic"),
    examples(
        [(n, a) for n in STAGES for a in ARITHMETICS], ("bits of the root", "scalar"), unpack=True
    ),
)
def test_stages(name: str, arithmetic: str) -> None:
    function, intervals = STAGES[name]
    assert prove_traced(function, ARITHMETICS[arithmetic], **intervals) >= 2


# Of a root of b bits more than one, whichever b is.
@pytest.mark.slow_cases(1)
@pytest.mark.parametrize(
    ("bits", "arithmetic"),
    examples(
        [(b, a) for b in range(BITS[0], BITS[1] + 1) for a in ARITHMETICS],
        (BITS[1], "scalar"),
        otherwise="record",
        slow=[(b, a) for b in (BITS[0], 16, BITS[1]) for a in ARITHMETICS],
        unpack=True,
    ),
)
def test_rows(bits: int, arithmetic: str) -> None:
    """Its reciprocal has 15 bits; so has what is normalised by it, and 16 with its sign."""
    written, this = ARITHMETICS[arithmetic], {"bits": (bits, bits)}
    roots = {"s": (1 << bits, (2 << bits) - 1), **this}
    assert prove_traced(short_layer_norm.reciprocal, written, roots, s=ROOT, bits=BITS) >= 2

    def normalised(d: Any, bits: Any, factor: Any, gain: Any, offset: Any) -> Any:
        return short_layer_norm.normalise(d, bits, factor, gain, offset, SHORT, 20, -127, 127)

    def within(operands: Mapping[str, Exact]) -> list[Any]:  # shown by `test_a_row_holds`
        most = 1 << (15 + bits - FRACTION)
        return [(operands["d"] * operands["factor"]).inside(-most, most)]

    operands = {"d": DEVIATION, "bits": BITS, "factor": (2**14, 2**15 - 1), **AFFINE}
    assert prove_traced(normalised, written, this, within, **operands) >= 2


def test_a_row_holds() -> None:
    """``|d| 2^F <= s`` and ``r s <= 2^(15 + b)`` give ``|d| r <= 2^(15 + b - F)``."""
    d, r, s, unit, most = z3.Ints("d r s unit most")
    given = [d >= 0, r >= 0, unit >= 1, d * unit <= s, r * s <= most]
    # What an inequality is multiplied by has to be named to the solver.
    prove("the product of both", (s - d * unit) * r >= 0, given)
    prove("a normalised row", d * r * unit <= most, [*given, (s - d * unit) * r >= 0])


def test_squares_about_a_mean() -> None:
    """``sum_about_mean``, whose terms add up over the channels: each is a square."""
    x, m = Exact.variable("x", *INPUT), Exact.variable("m", *INPUT)
    given = [x.inside(*INPUT), m.inside(*INPUT)]
    with claiming(Claims()):  # its bounds are those of a square, which is a stage above
        about = exact(short_layer_norm.sum_about_mean(x * x, x, m, 1))
    square = short_layer_norm.square(x - m)
    prove("it is the square", about.compared(square, lambda a, b: a == b).term, given)


def test_a_wrong_bound_of_a_row_is_found() -> None:
    """Without what ties a deviation to its root, it may be more than one."""
    with pytest.raises(AssertionError, match=r"^\[-65536, 65536\] is known: not for "):
        prove_traced(
            lambda d, bits, factor: short_layer_norm.normalise(
                d, bits, factor, 1, 0, SHORT, 20, -127, 127
            ),
            ARITHMETICS["vectors"],
            {"bits": (BITS[0], BITS[0])},
            d=DEVIATION,
            bits=BITS,
            factor=(2**14, 2**15 - 1),
        )
