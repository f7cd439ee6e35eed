"""Split channels on boards and microcontrollers, under their emulators, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arm.whole_models import check_on_board, check_on_microcontroller
from tests.integration.split_model import inputs, split_model

pytestmark = [pytest.mark.qemu, pytest.mark.slow]

LENGTH = 11


@pytest.mark.parametrize("target", ["rpi4", "armv7-neon"])
def test_on_boards(target: str, tmp_path: Path) -> None:
    arrays = inputs(1, LENGTH, 1, LENGTH - 4)
    check_on_board(split_model(), target, (1, LENGTH), arrays, tmp_path)


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
def test_on_microcontrollers(target: str, tmp_path: Path) -> None:
    arrays = inputs(1, LENGTH, 1, LENGTH - 4)
    check_on_microcontroller(split_model(), target, LENGTH, arrays, tmp_path)
