"""Rotations in 16 bits: errors over all inputs, widths, two domains, tables."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec.rotation import (
    FRACTION_BITS,
    LARGEST,
    rotate,
    rotation_table,
    unturned,
)
from ibert_tvm.relay_passes.spec.values import Ranged
from tests.snapshots import Messages

INT8 = np.arange(-127, 128)
ANGLES = np.concatenate([np.linspace(-np.pi, np.pi, 97), [1e-4, np.pi / 2, 3e-5]])


def test_all_pairs_of_8_bits_keep_7_more() -> None:
    """Half of 2^-7 of a step for each product, and what rounding the table costs."""
    x, partner = (side.reshape(-1) for side in np.meshgrid(INT8, INT8))
    worst = 0.0
    for angle in ANGLES:
        real = np.array([np.cos(angle), np.sin(angle)])
        table = rotation_table(np.append(real, 1.0)[None])
        cosine, sine = table.entries[0, :2].astype(np.int64)
        found = rotate(x, partner, cosine, -sine, FRACTION_BITS) * table.amplitude
        exact = (x * real[0] - partner * real[1]) * 2.0**FRACTION_BITS
        worst = max(worst, np.abs(found - exact).max())
    # In units of 2^-7: two roundings, and 127 * 2^7 * 2^-16 for each entry of the table.
    assert worst <= 1.0 + 2 * 127 * 2**FRACTION_BITS / 2**16 + 0.01
    assert worst > 1.0


@pytest.mark.parametrize("entries", [(LARGEST, 0), (0, LARGEST), (23170, -23170), (-32767, 1)])
def test_all_inputs_of_16_bits(entries: tuple[int, int]) -> None:
    x = np.arange(-(2**15), 2**15)
    cosine, sine = entries
    for partner in (x, -x - 1, np.roll(x, 12345)):
        found = rotate(x, partner, cosine, sine, 0)
        exact = (x * cosine + partner * sine) / 2**15
        inside = np.abs(exact) < 2**15 - 2
        assert np.abs(found - exact)[inside].max() <= 1.0
        assert found.min() >= -(2**15)
        assert found.max() <= 2**15 - 1
        np.testing.assert_array_equal(np.sign(found)[~inside], np.sign(exact)[~inside])


def test_products_of_8_bits_stay_in_16() -> None:
    byte, entry = Ranged(-127, 127), Ranged(-LARGEST, LARGEST)
    value = rotate(byte, byte, entry, entry, FRACTION_BITS)
    assert value.is_short
    assert (value.low, value.high) == (-32512, 32512)
    assert unturned(byte, FRACTION_BITS).high == 127 * 128


def test_a_table_has_any_amplitude() -> None:
    table = rotation_table(np.array([[3.0, -1.5, 0.0]]))
    np.testing.assert_array_equal(table.entries, [[LARGEST, -16383, 0]])
    np.testing.assert_allclose(table.entries * table.amplitude / 2**15, [[3, -1.5, 0]], atol=1e-4)


@pytest.mark.parametrize("entry", [0.0, np.inf, np.nan])
def test_a_table_without_numbers_is_refused(entry: float, messages: Messages) -> None:
    with messages.raises(RangeError):
        rotation_table(np.full((2, 2), entry))
