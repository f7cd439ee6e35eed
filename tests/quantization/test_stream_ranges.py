"""Which ranges sums and GELU's inputs get: 15 bits, unless a few channels dwarf the others."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.quantization.observers import Statistics
from ibert_tvm.quantization.options import CalibrationOptions
from ibert_tvm.quantization.table import TableBuilder
from ibert_tvm.relay_passes.lower.required_scales import Reader, Requirement
from ibert_tvm.relay_passes.lower.rule import rules_of
from ibert_tvm.relay_passes.quantization_table import ActivationQuant
from ibert_tvm.relay_passes.spec.clipped import clipped_scale
from ibert_tvm.relay_passes.spec.gelu import GELU
from ibert_tvm.relay_passes.spec.presets import preset as preset_of

CHANNELS = 65
SHORT = 2**14 - 1
WIDE = 2**19 - 1


def statistics(largest: float, others: float | None = None) -> Statistics:
    """Channels that reach `others`, and one that reaches `largest`, on the negative side."""
    magnitude = np.full(CHANNELS, largest if others is None else others)
    magnitude[7] = largest
    return Statistics(low=-magnitude, high=magnitude / 2)


def streams(
    preset: str, readers: dict[str, list[tuple[str, str, int]]], ops: dict[str, str], **seen
) -> dict[str, ActivationQuant]:
    """Stream section of the table for values that nothing multiplies."""
    needs = {op: rule.need(preset_of(preset)) for op, rule in rules_of(preset).items()}

    def reader(op: str, name: str, position: int) -> Reader:
        return Reader(name, needs[op].operands[position], needs[op].stream_for)

    needed = {
        name: Requirement(
            name,
            op,
            CHANNELS,
            needs[op],
            stream=True,
            readers=[reader(*read) for read in readers.get(name, [])],
        )
        for name, op in ops.items()
    }
    table, _ = TableBuilder(needed, {}, preset, CalibrationOptions()).build(seen, lambda: None)
    return dict(table.stream)


def sum_of(preset: str, **seen: Statistics) -> ActivationQuant:
    readers = {"sum": [("canonical.layer_norm", "norm", 0)]}
    return streams(preset, readers, {"sum": "canonical.add"}, **seen)["sum"]


def test_a_sum_has_15_bits_and_a_third_of_headroom() -> None:
    quant = sum_of("accurate", sum=statistics(6.0))
    assert (quant.low, quant.high, quant.zero_point) == (-SHORT, SHORT, 0)
    assert quant.scale == pytest.approx(1.33 * 6.0 / SHORT)


@pytest.mark.parametrize(("steps", "high"), [(210, SHORT), (120, WIDE), (10, WIDE)])
def test_a_sum_with_outliers_is_wide_where_the_median_channel_would_starve(
    steps: int, high: int
) -> None:
    # The median channel would reach this many of the steps that the outlier's range leaves.
    others = steps * 1.33 * 100.0 / SHORT
    quant = sum_of("accurate", sum=statistics(100.0, others))
    assert (quant.low, quant.high) == (-high, high)
    if high == WIDE:
        assert quant.scale == pytest.approx(100.0 / 2**17)


def test_a_single_small_channel_does_not_make_a_sum_wide() -> None:
    seen = statistics(6.0)
    seen.low[3] = seen.high[3] = 1e-6
    assert sum_of("accurate", sum=seen).high == SHORT


def test_sums_of_the_published_preset_are_wide() -> None:
    assert sum_of("paper", sum=statistics(6.0)).high == WIDE


def test_a_sum_that_only_feeds_a_sum_takes_its_range() -> None:
    ops = {"first": "canonical.add", "second": "canonical.add"}
    readers = {
        "first": [("canonical.add", "second", 0)],
        "second": [("canonical.layer_norm", "norm", 0)],
    }
    both = streams("accurate", readers, ops, first=statistics(1.0), second=statistics(6.0))
    for attribute in ("scale", "low", "high"):
        assert getattr(both["first"], attribute) == getattr(both["second"], attribute)
    assert both["second"].high == SHORT


@pytest.mark.parametrize("largest", [0.3, 2.0, 17.0])
def test_the_input_of_gelu_has_the_scale_that_its_polynomial_likes(largest: float) -> None:
    readers = {"up": [("canonical.gelu", "act", 0)]}
    seen = {"up": statistics(largest)}
    quant = streams("accurate", readers, {"up": "canonical.linear"}, **seen)["up"]
    assert quant.scale == clipped_scale(GELU.limit, 1.33 * largest)
    assert (quant.low, quant.high) == (-SHORT, SHORT)
    assert largest / quant.scale < SHORT


def test_factors_of_a_product_have_15_bits_where_the_arithmetic_has_16() -> None:
    readers = {"up": [("canonical.multiply", "gate", 0)]}
    for preset, high, headroom in (("accurate", SHORT, 1.33), ("paper", 2**15 - 1, 1.5)):
        quant = streams(preset, readers, {"up": "canonical.linear"}, up=statistics(2.0))["up"]
        assert (quant.low, quant.high) == (-high, high)
        assert quant.scale == pytest.approx(headroom * 2.0 / high)


def test_other_streams_have_16_bits_and_half_of_headroom() -> None:
    readers = {"up": [("canonical.gelu", "act", 0), ("canonical.relu", "other", 0)]}
    quant = streams("accurate", readers, {"up": "canonical.linear"}, up=statistics(2.0))["up"]
    assert (quant.low, quant.high) == (-(2**15) + 1, 2**15 - 1)
    assert quant.scale == pytest.approx(1.5 * 2.0 / (2**15 - 1))
