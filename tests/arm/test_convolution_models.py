"""Encoders behind convolutions on boards and microcontrollers, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arm.whole_models import check_on_board, check_on_microcontroller
from tests.examples import examples
from tests.integration.convolution_model import (
    MODELS,
    PRESETS,
    TOKENS,
    convolution_model,
    inputs,
)

pytestmark = [pytest.mark.qemu, pytest.mark.slow]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("target", ["rpi4", "armv7-neon"])
def test_on_boards(target: str, preset: str, tmp_path: Path) -> None:
    name = "words"  # the emulator's runner takes ids only
    model = convolution_model(name, preset)
    arrays = inputs(model, name, 1, 1)
    check_on_board(model, target, (1, TOKENS[name]), arrays, tmp_path)


@pytest.mark.parametrize("preset", examples(PRESETS, "accurate", otherwise="record"))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
def test_on_microcontrollers(target: str, name: str, preset: str, tmp_path: Path) -> None:
    model = convolution_model(name, preset)
    check_on_microcontroller(model, target, TOKENS[name], inputs(model, name, 1, 1), tmp_path)
