"""Split channels on boards and microcontrollers, under their emulators, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import ibert_tvm as ibert
from tests.arm.packages import assert_bit_exact, link_package, run_package
from tests.arm.tools import board, run_library
from tests.integration.split_model import inputs, split_model

pytestmark = [pytest.mark.qemu, pytest.mark.slow]

LENGTH = 11


@pytest.mark.parametrize("target", ["rpi4", "armv7-neon"])
def test_on_boards(target: str, tmp_path: Path) -> None:
    description, model = board(target), split_model()
    compiled = ibert.compile(model, target=target, shapes=[(1, LENGTH)], runtime="none")
    path = compiled.export(tmp_path / "model.so", require_load=True)
    arrays = inputs(1, LENGTH, 1, LENGTH - 4)
    assert_bit_exact(model, arrays, list(run_library(path, description, arrays).values()))


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
def test_on_microcontrollers(target: str, tmp_path: Path) -> None:
    board(target)
    package = tmp_path / "package"
    ibert.compile(split_model(), target=target, shapes=[(1, LENGTH)]).export(package)
    arrays = inputs(1, LENGTH, 1, LENGTH - 4)
    run = run_package(package, link_package(package, tmp_path), arrays, tmp_path)
    assert_bit_exact(split_model(), arrays, run.outputs)
