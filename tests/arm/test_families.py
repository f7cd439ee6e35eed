"""Models of every family on boards and microcontrollers, under their emulators, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arm.whole_models import check_on_board, check_on_microcontroller
from tests.examples import examples
from tests.integration.families import EVERY, FAMILIES, Model

pytestmark = [pytest.mark.qemu, pytest.mark.slow]

# The emulator's runner takes ids only.
TEXTS = [case for case in EVERY if case[1:2] == () or case[1] not in FAMILIES[case[0]].images]
# Each family on a board with NEON and on a microcontroller; more where a target has instructions
# of its own for it.
BOARDS = [
    ("rpi4", "convolutions", "words", "accurate"),
    ("armv7-neon", "convolutions", "words", "paper"),
    ("rpi4", "distances", "mpnet", "accurate"),
    ("rpi4", "gates", "silu", "accurate"),
    ("aarch64-dotprod", "gates", "sigmoid", "accurate"),
    ("aarch64-i8mm", "gates", "silu", "accurate"),
    ("armv7-neon", "gates", "gelu", "paper"),
    ("rpi4", "groups", "rms", "accurate"),
    ("armv7-neon", "groups", "own", "accurate"),
    ("rpi4", "rotations", "modernbert", "accurate"),
    ("armv7-neon", "rotations", "roformer", "accurate"),
    ("rpi4", "row scales", "bert"),
    ("armv7-neon", "row scales", "gated"),
    ("rpi4", "sentences", "every pooling", "accurate"),
    ("armv7-neon", "sentences", "splade", "accurate"),
    ("rpi4", "split channels"),
    ("rpi4", "tokens", "neighbours", "accurate"),
    ("armv7-neon", "tokens", "masked", "paper"),
    ("rpi4", "wide operands", "bert"),
    ("aarch64-i8mm", "wide operands", "bert"),
    ("armv7-neon", "wide operands", "bert"),
]
MICROCONTROLLERS = [
    ("cortex-m4", "convolutions", "whisper", "accurate"),
    ("cortex-m4", "convolutions", "overlap", "accurate"),
    ("cortex-m55", "convolutions", "words", "accurate"),
    ("cortex-m4", "gates", "silu", "accurate"),
    ("cortex-m55", "gates", "gelu", "paper"),
    ("cortex-m4", "groups", "rms", "accurate"),
    ("cortex-m4", "rotations", "granite", "accurate"),
    ("cortex-m55", "rotations", "nomic_bert", "accurate"),
    ("cortex-m0", "row scales", "gated"),
    ("cortex-m4", "row scales", "gated"),
    ("cortex-m55", "row scales", "bert"),
    ("cortex-m4", "sentences", "every pooling", "accurate"),
    ("cortex-m55", "sentences", "late interaction", "paper"),
    ("cortex-m55", "split channels"),
    ("cortex-m4", "tokens", "registers", "accurate"),
    ("cortex-m55", "tokens", "places", "paper"),
    ("cortex-m55", "tokens", "tokens", "accurate"),
    ("cortex-m0", "wide operands", "bert"),
    ("cortex-m3", "wide operands", "bert"),
    ("cortex-m4", "wide operands", "bert"),
    ("cortex-m55", "wide operands", "bert"),
]


def cases(
    slow: list[tuple[str, ...]], targets: tuple[str, ...], models: list[tuple[str, ...]]
) -> list[object]:
    """All models on the first two targets, gates on each; those that are not slow are for records.

    Gates have operands of all kinds.
    """
    every = [
        (target, *model)
        for target in targets
        for model in models
        if target in targets[:2] or model[0] == "gates"
    ]
    return examples(dict.fromkeys([*every, *slow]), *slow, otherwise="record")


@pytest.mark.parametrize(
    "case",
    cases(BOARDS, ("rpi4", "armv7-neon", "aarch64-dotprod", "aarch64-i8mm"), TEXTS),
    ids="-".join,
)
def test_on_boards(case: tuple[str, ...]) -> None:
    target, model = case[0], Model(*case[1:])
    batch, length = model.family.shape
    length = model.length(length)
    arrays = model.inputs(batch, length, 1, length - 4)
    check_on_board(model.quantised, target, (batch, length), arrays)


@pytest.mark.parametrize(
    "case", cases(MICROCONTROLLERS, ("cortex-m4", "cortex-m55"), EVERY), ids="-".join
)
def test_on_microcontrollers(case: tuple[str, ...], tmp_path: Path) -> None:
    target, model = case[0], Model(*case[1:])
    length = model.length(11)
    arrays = model.inputs(1, length, 1, length - 4)
    check_on_microcontroller(model.quantised, target, length, arrays, tmp_path)
