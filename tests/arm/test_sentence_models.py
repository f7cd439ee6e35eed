"""Poolings and unit length on boards and microcontrollers, under their emulators, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import ibert_tvm as ibert
from tests.arm.packages import assert_bit_exact, link_package, run_package
from tests.arm.tools import board, run_library
from tests.examples import examples
from tests.integration.sentence_model import MODULES, inputs, sentence_model

pytestmark = pytest.mark.qemu

LENGTH = 11
CASES = [(name, preset) for name in MODULES for preset in ("accurate", "paper")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name", "preset"),
    examples(
        [(target, *case) for target in ("rpi4", "armv7-neon") for case in CASES],
        ("rpi4", "every pooling", "accurate"),
        unpack=True,
    ),
)
def test_on_boards(target: str, name: str, preset: str, tmp_path: Path) -> None:
    description, model = board(target), sentence_model(name, preset)
    compiled = ibert.compile(model, target=target, shapes=[(1, LENGTH)], runtime="none")
    path = compiled.export(tmp_path / "model.so", require_load=True)
    arrays = inputs(1, LENGTH, 1, LENGTH - 4)
    assert_bit_exact(model, arrays, list(run_library(path, description, arrays).values()))


@pytest.mark.parametrize(
    ("target", "name", "preset"),
    examples(
        [(target, *case) for target in ("cortex-m4", "cortex-m55") for case in CASES],
        ("cortex-m4", "every pooling", "accurate"),
        unpack=True,
    ),
)
def test_on_microcontrollers(target: str, name: str, preset: str, tmp_path: Path) -> None:
    board(target)
    model = sentence_model(name, preset)
    package = tmp_path / "package"
    ibert.compile(model, target=target, shapes=[(1, LENGTH)]).export(package)
    arrays = inputs(1, LENGTH, 1, LENGTH - 4)
    run = run_package(package, link_package(package, tmp_path), arrays, tmp_path)
    assert_bit_exact(model, arrays, run.outputs)
