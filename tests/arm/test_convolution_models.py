"""Encoders behind convolutions on boards and microcontrollers, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import ibert_tvm as ibert
from tests.arm.packages import assert_bit_exact, link_package, run_package
from tests.arm.tools import board, run_library
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
    description, model = board(target), convolution_model(name, preset)
    compiled = ibert.compile(model, target=target, shapes=[(1, TOKENS[name])], runtime="none")
    path = compiled.export(tmp_path / "model.so", require_load=True)
    arrays = inputs(model, name, 1, 1)
    assert_bit_exact(model, arrays, list(run_library(path, description, arrays).values()))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
def test_on_microcontrollers(target: str, name: str, preset: str, tmp_path: Path) -> None:
    board(target)
    model = convolution_model(name, preset)
    package = tmp_path / "package"
    ibert.compile(model, target=target, shapes=[(1, TOKENS[name])]).export(package)
    arrays = inputs(model, name, 1, 1)
    run = run_package(package, link_package(package, tmp_path), arrays, tmp_path)
    assert_bit_exact(model, arrays, run.outputs)
