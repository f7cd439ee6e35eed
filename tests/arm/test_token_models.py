"""Tokens that are joined, shifted and masked on boards and microcontrollers, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

import ibert_tvm as ibert
from tests.arm.packages import assert_bit_exact, link_package, run_package
from tests.arm.tools import board, run_library
from tests.examples import examples
from tests.integration.token_model import MODELS, TOKENS, inputs, token_model

pytestmark = pytest.mark.qemu


def length_of(name: str) -> int:
    return TOKENS if name == "registers" else 11


CASES = [(name, preset) for name in MODELS for preset in ("accurate", "paper")]
TEXTS = [case for case in CASES if case[0] != "registers"]  # the emulator's runner takes ids only


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name", "preset"),
    examples(
        [(target, *case) for target in ("rpi4", "armv7-neon") for case in TEXTS],
        ("rpi4", "neighbours", "accurate"),
        unpack=True,
    ),
)
def test_on_boards(target: str, name: str, preset: str, tmp_path: Path) -> None:
    description, model = board(target), token_model(name, preset)
    compiled = ibert.compile(model, target=target, shapes=[(1, length_of(name))], runtime="none")
    path = compiled.export(tmp_path / "model.so", require_load=True)
    arrays = inputs(model, name, 1, 11, 1, 7)
    assert_bit_exact(model, arrays, list(run_library(path, description, arrays).values()))


@pytest.mark.parametrize(
    ("target", "name", "preset"),
    examples(
        [(target, *case) for target in ("cortex-m4", "cortex-m55") for case in CASES],
        ("cortex-m4", "registers", "accurate"),
        unpack=True,
    ),
)
def test_on_microcontrollers(target: str, name: str, preset: str, tmp_path: Path) -> None:
    board(target)
    model = token_model(name, preset)
    package = tmp_path / "package"
    ibert.compile(model, target=target, shapes=[(1, length_of(name))]).export(package)
    arrays = inputs(model, name, 1, 11, 1, 7)
    run = run_package(package, link_package(package, tmp_path), arrays, tmp_path)
    assert_bit_exact(model, arrays, run.outputs)
