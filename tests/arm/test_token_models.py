"""Tokens that are joined, shifted and masked on boards and microcontrollers, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arm.whole_models import check_on_board, check_on_microcontroller
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
        ("armv7-neon", "masked", "paper"),
        unpack=True,
        otherwise="record",
    ),
)
def test_on_boards(target: str, name: str, preset: str, tmp_path: Path) -> None:
    model = token_model(name, preset)
    arrays = inputs(model, name, 1, 11, 1, 7)
    check_on_board(model, target, (1, length_of(name)), arrays, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name", "preset"),
    examples(
        [(target, *case) for target in ("cortex-m4", "cortex-m55") for case in CASES],
        ("cortex-m4", "registers", "accurate"),
        ("cortex-m55", "tokens", "accurate"),
        unpack=True,
        otherwise="record",
    ),
)
def test_on_microcontrollers(target: str, name: str, preset: str, tmp_path: Path) -> None:
    model = token_model(name, preset)
    arrays = inputs(model, name, 1, 11, 1, 7)
    check_on_microcontroller(model, target, length_of(name), arrays, tmp_path)
