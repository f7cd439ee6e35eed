"""Matrix operands of 16 bits on boards and microcontrollers, under emulators, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arm.whole_models import check_on_board, check_on_microcontroller
from tests.integration.row_scale_models import inputs, wide_model

pytestmark = [pytest.mark.qemu, pytest.mark.slow]

LENGTH = 11


@pytest.mark.parametrize("target", ["rpi4", "aarch64-i8mm", "armv7-neon"])
def test_on_boards(target: str, tmp_path: Path) -> None:
    arrays = inputs("bert", 1, LENGTH, 1, LENGTH - 4)
    check_on_board(wide_model("bert"), target, (1, LENGTH), arrays, tmp_path)


@pytest.mark.parametrize("target", ["cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55"])
def test_on_microcontrollers(target: str, tmp_path: Path) -> None:
    arrays = inputs("bert", 1, LENGTH, 1, LENGTH - 4)
    check_on_microcontroller(wide_model("bert"), target, LENGTH, arrays, tmp_path)
