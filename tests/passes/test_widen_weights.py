"""WidenWeights: products with weights in half bytes become such with weights of 8 bits."""

from __future__ import annotations

import numpy as np

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.passes.widen_weights import WidenWeights
from ibert_tvm.relay_passes.spec import nibbles
from tests.passes.small import CHANNELS, calls, outputs_of, small_program

_ROWS = 5


def packed() -> tuple[np.ndarray, np.ndarray]:
    """A weight of all half bytes and scales that there are, and more channels than are read."""
    random = np.random.default_rng(3)
    entries = random.integers(-8, 8, (_ROWS, 1, nibbles.GROUP)).astype(np.int8)
    return nibbles.pack(entries, random.integers(1, 17, (_ROWS, 1)))


def test_a_product_has_the_weight_that_half_bytes_stand_for() -> None:
    def body(p, inputs):
        weight, scales = packed()
        half = p.parameter("half.weight", weight), p.parameter("half.scales", scales)
        bias = p.parameter("half.bias", np.arange(_ROWS, dtype=np.int32))
        narrow = p.builder.emit(integer.nibble_linear(inputs["x"], *half, bias, name="narrow"))
        return [narrow, p.linear("wide", inputs["x"], 4)]

    program = small_program(body, x="int8")
    result = WidenWeights()(program)
    assert calls(result.module["main"]) == [("linear", "narrow"), ("linear", "wide")]
    wide = result.parameters["half.weight.widened"]
    np.testing.assert_array_equal(wide, nibbles.unpack(*packed(), CHANNELS))
    assert wide.dtype == np.int8 and "half.scales" not in result.parameters
    for got, want in zip(outputs_of(result), outputs_of(program), strict=True):
        np.testing.assert_array_equal(got, want)
    of_half, of_whole = (
        analyse_ranges(one.module, one.parameters, max_seq_len=3).values["narrow"]
        for one in (program, result)
    )
    assert of_half == of_whole, "proved by the same integers"
    assert WidenWeights()(result) is result
