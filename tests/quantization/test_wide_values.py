"""Values of attention in more than 8 bits: where, how close, and who cannot read them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ibert_tvm.quantization import CalibrationOptions, calibrate
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.lower import lower_to_integer
from ibert_tvm.relay_passes.quantization_table import WIDE_RANGE, QuantizationTable
from ibert_tvm.relay_passes.spec.short_softmax import MOST_WIDE_KEYS
from tests.quantization.models import random_batches, random_model

VALUES = [f"encoder.layer.{layer}.attention.self.value" for layer in range(2)]
QUICK = CalibrationOptions(observer="minmax", alphas=(0.5,), compensate=False, wide_values=True)


def table(preset: str | None = None, options: CalibrationOptions = QUICK) -> QuantizationTable:
    model = random_model("bert")
    return calibrate(model, random_batches(model, 4), preset, options)[0]


def test_only_what_attention_averages_is_wide() -> None:
    chosen = table()
    wide = [name for name, q in chosen.matmul.items() if (q.low, q.high) == WIDE_RANGE]
    assert sorted(wide) == VALUES
    assert not any(q.high > 127 for q in table("paper").matmul.values() if q.signed)


def test_models_of_long_sequences_have_none() -> None:
    """The sum of 8288 values of weight 255 is the last that 32 bits hold."""
    largest = 255 * WIDE_RANGE[1]
    assert MOST_WIDE_KEYS * largest < 2**31 <= (MOST_WIDE_KEYS + 1) * largest
    model = random_model("bert")
    for longest, wide in ((MOST_WIDE_KEYS, True), (MOST_WIDE_KEYS + 1, False), (None, True)):
        long = replace(model, info=replace(model.info, max_sequence_length=longest))
        chosen, summary = calibrate(long, random_batches(model, 1), None, QUICK)
        assert (chosen.matmul[VALUES[0]].high == WIDE_RANGE[1]) == wide
        assert summary["options"]["wide_values"] == wide


def test_they_have_half_as_much_range_again_in_finer_steps() -> None:
    wide, narrow = table(), table(options=QUICK.but(wide_values=False))
    for name in VALUES:
        a, b = wide.matmul[name], narrow.matmul[name]
        reach = 1.5 * b.channel_scale * b.high
        np.testing.assert_allclose(a.channel_scale * a.high, reach, rtol=1e-12)
        assert a.scale < b.scale / 5


def test_they_come_closer_to_the_accumulators() -> None:
    """But for what is clipped."""
    model = random_model("bert")
    inputs = random_batches(model, 1, seed=3)[0]
    errors = []
    for wide in (False, True):
        chosen = table(options=QUICK.but(wide_values=wide))
        lowered = lower_to_integer(model.module, model.parameters, chosen)
        program = read_program(lowered.module)
        values = {name: inputs[name] for name in program.inputs}
        _, made = evaluate_all(program, values, lowered.parameters)
        forms = {f["form"]: f for f in lowered.scales["values"][VALUES[0]]}
        exact, rounded = (
            made[f["value"]] * np.asarray(f["scale"]) for f in (forms["native"], forms["matmul"])
        )
        integers = made[forms["matmul"]["value"]]
        assert integers.dtype == (np.int16 if wide else np.int8)
        inside = np.abs(integers) < chosen.matmul[VALUES[0]].high
        errors.append(np.sqrt(np.mean((exact - rounded)[inside] ** 2)))
    assert errors[1] < errors[0] / 5


@pytest.mark.parametrize("part", ["query", "key"])
def test_queries_and_keys_have_8_bits(part: str) -> None:
    model, chosen = random_model("bert"), table()
    name = VALUES[0].replace("value", part)
    other = replace(chosen.matmul[name], low=WIDE_RANGE[0], high=WIDE_RANGE[1])
    with pytest.raises(LoweringError) as caught:
        lower_to_integer(
            model.module, model.parameters, replace(chosen, matmul={**chosen.matmul, name: other})
        )
    assert "take symmetric int8" in str(caught.value)


def test_the_normalised_softmax_has_no_room_for_them() -> None:
    model = random_model("bert")
    chosen = table("paper")
    wide = replace(chosen.matmul[VALUES[0]], low=WIDE_RANGE[0], high=WIDE_RANGE[1])
    with pytest.raises(LoweringError) as caught:
        lower_to_integer(
            model.module,
            model.parameters,
            replace(chosen, matmul={**chosen.matmul, VALUES[0]: wide}),
        )
    assert str(caught.value).startswith("the values are int16 with zero point 0")
