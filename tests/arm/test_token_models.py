"""Tokens that are joined, shifted and masked on boards and microcontrollers, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arm.whole_models import check_on_board, check_on_microcontroller
from tests.examples import examples
from tests.integration.token_model import MODELS, TOKENS, inputs, token_model

pytestmark = pytest.mark.qemu


CASES = [(name, preset) for name in MODELS for preset in ("accurate", "paper")]
TEXTS = [case for case in CASES if case[0] not in TOKENS]  # the emulator's runner takes ids only


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
    check_on_board(model, target, (1, TOKENS.get(name, 11)), arrays, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name", "preset"),
    examples(
        [(target, *case) for target in ("cortex-m4", "cortex-m55") for case in CASES],
        ("cortex-m4", "registers", "accurate"),
        ("cortex-m4", "places", "accurate"),
        ("cortex-m55", "places", "paper"),
        ("cortex-m55", "tokens", "accurate"),
        unpack=True,
        otherwise="record",
    ),
)
def test_on_microcontrollers(target: str, name: str, preset: str, tmp_path: Path) -> None:
    model = token_model(name, preset)
    arrays = inputs(model, name, 1, 11, 1, 7)
    check_on_microcontroller(model, target, TOKENS.get(name, 11), arrays, tmp_path)
