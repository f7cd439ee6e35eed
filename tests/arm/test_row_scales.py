"""Scales per token on boards and microcontrollers, under their emulators, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arm.whole_models import check_on_board, check_on_microcontroller
from tests.integration.row_scale_models import inputs, row_scale_model

pytestmark = [pytest.mark.qemu, pytest.mark.slow]

LENGTH = 11
MODELS = ("gated", "bert")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", ["rpi4", "armv7-neon"])
def test_on_boards(target: str, name: str, tmp_path: Path) -> None:
    arrays = inputs(name, 1, LENGTH, 1, LENGTH - 4)
    check_on_board(row_scale_model(name), target, (1, LENGTH), arrays, tmp_path)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55", "cortex-m0"])
def test_on_microcontrollers(target: str, name: str, tmp_path: Path) -> None:
    arrays = inputs(name, 1, LENGTH, 1, LENGTH - 4)
    check_on_microcontroller(row_scale_model(name), target, LENGTH, arrays, tmp_path)
