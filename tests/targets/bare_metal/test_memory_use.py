"""The refusal of models that are larger than a board's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

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


def test_too_little_flash() -> None:
    with pytest.raises(MemoryLimitError) as error:
        check_limits(USE, PackageOptions(flash=1_030_499, ram=201_500), TARGET)
    assert str(error.value) == (
        "the model needs more flash than there is\n"
        "  where: target 'cortex-m4', --flash 1030499\n"
        "  why: flash: 1030500 bytes are needed, 1 more than the 1030499 there are: 1000000 "
        "weights (900000 words, 40000 a, 30000 b, 20000 c, 9000 others), 30000 code, "
        "500 constants\n"
        "  what to do: take a board with 1006.3 KB of flash, or a smaller model"
    )


def test_too_little_ram() -> None:
    with pytest.raises(MemoryLimitError) as error:
        check_limits(USE, PackageOptions(ram=101_500), TARGET)
    assert str(error.value) == (
        "the model needs more RAM than there is\n"
        "  where: target 'cortex-m4', --ram 101500\n"
        "  why: RAM: 201500 bytes are needed, 100000 more than the 101500 there are: 200000 arena, "
        "1500 stack, 0 variables; the arena is fullest in layer encoder.layer.0.intermediate at "
        "batch 1, 128 tokens: 150000 intermediate, 40000 sum\n"
        "  what to do: take a board with 196.8 KB of RAM, or compile for shorter sequences (about "
        "--seq-len 64)"
    )


def test_too_little_of_both_names_both() -> None:
    with pytest.raises(MemoryLimitError) as error:
        check_limits(USE, PackageOptions(flash=1000, ram=1000), TARGET)
    assert error.value.what == "the model needs more flash and RAM than there is"
    assert error.value.where == "target 'cortex-m4', --flash 1000 --ram 1000"
    assert error.value.todo.endswith("take a board with 196.8 KB of RAM, or take a smaller model")


def test_a_batch_is_the_first_thing_to_leave_out() -> None:
    use = replace(USE, peak=replace(PEAK, batch=4))
    with pytest.raises(MemoryLimitError) as error:
        check_limits(use, PackageOptions(ram=101_500), TARGET)
    assert error.value.todo.endswith("or compile for --batch 1")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"emit": "rust"}, "emit 'rust': use one of objects, c, c-arrays"),
        ({"flash": 0}, "flash 0: at least 1 byte"),
        ({"ram": -1}, "ram -1: at least 1 byte"),
    ],
)
def test_options_are_checked(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        PackageOptions(**wrong)  # type: ignore[arg-type]
    assert str(error.value) == message
