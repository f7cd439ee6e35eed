"""Parts of 16-bit operands: every number is that of its parts, which are bytes."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.spec.parts import (
    OPERAND_BITS,
    OPERAND_LIMIT,
    high_part,
    joined,
    low_part,
)


@pytest.mark.parametrize("bits", range(1, OPERAND_BITS + 1))
def test_a_number_is_that_of_its_parts(bits: int) -> None:
    limit = 127 << bits
    x = np.arange(-limit, limit + 1)
    high, low = high_part(x, bits), low_part(x, bits)
    assert (high.min(), high.max()) == (-127, 127)
    assert (low.min(), low.max()) == (0, 2**bits - 1)
    np.testing.assert_array_equal(joined(high, low, bits), x)


def test_so_are_products() -> None:
    random = np.random.default_rng(0)
    x = random.integers(-OPERAND_LIMIT, OPERAND_LIMIT + 1, (50, 300))
    weight = random.integers(-127, 128, (300, 7))
    parts = [part(x, OPERAND_BITS) @ weight for part in (high_part, low_part)]
    np.testing.assert_array_equal(joined(*parts, OPERAND_BITS), x @ weight)
