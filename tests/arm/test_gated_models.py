"""Gated layers and RMSNorm on boards and microcontrollers, under their emulators, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arm.whole_models import check_on_board, check_on_microcontroller
from tests.examples import examples
from tests.integration.gated_model import MODELS, gated_model, inputs

pytestmark = pytest.mark.qemu

LENGTH = 11
CASES = [(name, preset) for name in MODELS for preset in ("accurate", "paper")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name", "preset"),
    examples(
        [
            (target, *case)
            for target in ("rpi4", "aarch64-dotprod", "aarch64-i8mm", "armv7-neon")
            for case in CASES
        ],
        ("rpi4", "silu", "accurate"),
        ("aarch64-dotprod", "sigmoid", "accurate"),
        ("aarch64-i8mm", "silu", "accurate"),
        ("armv7-neon", "gelu", "paper"),
        unpack=True,
        otherwise="record",
    ),
)
def test_on_boards(target: str, name: str, preset: str, tmp_path: Path) -> None:
    arrays = inputs(1, LENGTH, 1, LENGTH - 4)
    check_on_board(gated_model(name, preset), target, (1, LENGTH), arrays, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name", "preset"),
    examples(
        [(target, *case) for target in ("cortex-m4", "cortex-m55") for case in CASES],
        ("cortex-m4", "silu", "accurate"),
        ("cortex-m55", "gelu", "paper"),
        unpack=True,
        otherwise="record",
    ),
)
def test_on_microcontrollers(target: str, name: str, preset: str, tmp_path: Path) -> None:
    arrays = inputs(1, LENGTH, 1, LENGTH - 4)
    check_on_microcontroller(gated_model(name, preset), target, LENGTH, arrays, tmp_path)
