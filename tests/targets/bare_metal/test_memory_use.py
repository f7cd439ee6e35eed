"""The refusal of models that are larger than a board's memory."""

from __future__ import annotations

from dataclasses import replace

from ibert_tvm.common.errors import UsageError
from ibert_tvm.targets import get_target
from ibert_tvm.targets.aot.model import ArenaPeak
from ibert_tvm.targets.bare_metal import PackageOptions
from ibert_tvm.targets.bare_metal.memory_use import (
    FunctionPeak,
    MemoryLimitError,
    MemoryUse,
    check_limits,
)
from tests.snapshots import Messages

TARGET = get_target("cortex-m4")
LAYER = "encoder.layer.0.intermediate"
PEAK = FunctionPeak(1, 128, ArenaPeak(LAYER, 190_000, (("intermediate", 150_000), ("sum", 40_000))))
USE = MemoryUse(
    code=30_000,
    constants=500,
    weights=1_000_000,
    arena=200_000,
    stack=1_500,
    data=0,
    largest_weights=(("words", 900_000), ("a", 40_000), ("b", 30_000), ("c", 20_000), ("d", 9_000)),
    peak=PEAK,
)


def test_what_fits_is_not_refused() -> None:
    check_limits(USE, PackageOptions(), TARGET)
    check_limits(USE, PackageOptions(flash=1_030_500, ram=201_500), TARGET)


def test_too_little_flash(messages: Messages) -> None:
    with messages.raises(MemoryLimitError):
        check_limits(USE, PackageOptions(flash=1_030_499, ram=201_500), TARGET)


def test_too_little_ram(messages: Messages) -> None:
    with messages.raises(MemoryLimitError):
        check_limits(USE, PackageOptions(ram=101_500), TARGET)


def test_the_advised_length_fits(messages: Messages) -> None:
    """Memory is not proportional to tokens, and not even monotonic."""
    asked = []

    def arena(tokens: int) -> int:
        asked.append(tokens)
        return 1_562 * tokens + 6_000 * (tokens % 16 != 0)

    with messages.raises(MemoryLimitError):
        check_limits(USE, PackageOptions(ram=101_500), TARGET, arena)
    assert asked == [63, 59]
    with messages.raises(MemoryLimitError):
        check_limits(USE, PackageOptions(ram=3_000), TARGET, lambda tokens: 50_000)


def test_too_little_of_both_names_both(messages: Messages) -> None:
    with messages.raises(MemoryLimitError):
        check_limits(USE, PackageOptions(flash=1000, ram=1000), TARGET)


def test_a_batch_is_the_first_thing_to_leave_out(messages: Messages) -> None:
    use = replace(USE, peak=replace(PEAK, batch=4))
    with messages.raises(MemoryLimitError):
        check_limits(use, PackageOptions(ram=101_500), TARGET)


def test_options_are_checked(messages: Messages) -> None:
    with messages.raises(UsageError):
        PackageOptions(emit="rust")
    with messages.raises(UsageError):
        PackageOptions(flash=0)
    with messages.raises(UsageError):
        PackageOptions(ram=-1)
