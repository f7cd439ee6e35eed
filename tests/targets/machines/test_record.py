"""A machine's record is complete, or refused; and no other file lists machines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ibert_tvm.targets import get_target, list_targets
from ibert_tvm.targets.machines import MACHINES
from ibert_tvm.targets.machines.aarch64 import AARCH64
from ibert_tvm.targets.machines.arm import ARM
from ibert_tvm.targets.machines.c99 import C99
from ibert_tvm.targets.machines.record import BareMetal, Emulator, Linux, Machine
from ibert_tvm.targets.machines.riscv import RISCV32, RISCV64
from ibert_tvm.targets.machines.thumb import THUMB
from ibert_tvm.targets.machines.wasm32 import WASM32
from ibert_tvm.targets.machines.x86_64 import X86_64
from tests.snapshots import Messages

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("ibert_tvm", "relay_passes", "schedules", "targets")
_NO_NAMES = Linux(names=(), runtimes=("none",))
_UPPER = Linux(names=("AMD64",), runtimes=("none",))
_OTHER = Linux(names=("x",), runtimes=("onnx",))


def test_every_file_has_a_machine() -> None:
    known = (AARCH64, ARM, C99, RISCV32, RISCV64, THUMB, WASM32, X86_64)
    assert {one.name: one for one in known} == MACHINES


def test_a_description_has_one_text_in_every_process() -> None:
    """Libraries that `Encoder` makes are found again by it."""
    texts = [repr(get_target(status.name)) for status in list_targets()]
    assert len(texts) > 10
    assert [text for text in texts if " at 0x" in text] == []


@pytest.mark.parametrize("part", ["is_floating_point", "elf_machine", "toolchains", "system"])
def test_a_missing_part_is_an_error(part: str) -> None:
    parts: dict[str, Any] = {**vars(AARCH64)}
    del parts[part]
    with pytest.raises(TypeError) as caught:
        Machine(**parts)
    message = f"Machine.__init__() missing 1 required keyword-only argument: '{part}'"
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("machine", "changes"),
    [
        (AARCH64, {"title": ""}),
        (AARCH64, {"bits": 16}),
        (AARCH64, {"is_floating_point": None}),
        (ARM, {"float_use": None}),
        (ARM, {"float_abis": ("soft", "softfp")}),
        (X86_64, {"emulator": Emulator("qemu-x86_64", "qemu-user")}),
        (AARCH64, {"system": _NO_NAMES}),
        (AARCH64, {"system": _UPPER}),
        (AARCH64, {"system": _OTHER}),
        (THUMB, {"toolchains": {}, "emulator": None}),
        (WASM32, {"elf_machine": "EM_NONE"}),
    ],
)
def test_an_incomplete_record_is_refused(
    machine: Machine, changes: dict[str, Any], messages: Messages
) -> None:
    with messages.raises(ValueError):
        replace(machine, **changes)


@pytest.mark.parametrize("part", ["start_up", "compilers"])
def test_a_microcontroller_without_a_part_is_refused(part: str, messages: Messages) -> None:
    assert isinstance(THUMB.system, BareMetal)
    changes: dict[str, Any] = {part: ""}
    with messages.raises(ValueError):
        replace(THUMB, system=replace(THUMB.system, **changes))


@pytest.mark.parametrize(
    ("target", "changes"),
    [
        ("rpi4", {"machine": X86_64, "emulated": ""}),
        ("rpi4", {"float_abi": "hard"}),
        ("cortex-m4", {"float_abi": "hard"}),
        ("x86-64", {"emulated": "max"}),
        ("t4", {"machine": AARCH64}),
    ],
)
def test_a_target_that_contradicts_its_machine_is_refused(
    target: str, changes: dict[str, Any], messages: Messages
) -> None:
    with messages.raises(ValueError):
        replace(get_target(target), **changes)


# -- nobody else lists machines --------------------------------------------------------------------


def _names() -> set[str]:
    """What machines are called: by us, in ELF headers, and by ``uname -m``."""
    names = set()
    for machine in MACHINES.values():
        names |= {machine.name, machine.elf_machine}
        if isinstance(machine.system, Linux):
            names |= {*machine.system.names, *(name.upper() for name in machine.system.names)}
    return names - {""}  # of a machine whose files are no ELF


def listed(tree: ast.AST, names: set[str]) -> Iterator[int]:
    """Lines that compare something with the name of a machine, or collect such names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts: list[ast.expr | None] = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = [*node.keys]
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            parts = [*node.elts]
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        else:
            continue
        found = (part.value for part in parts if isinstance(part, ast.Constant))
        if any(isinstance(value, str) and value in names for value in found):
            yield node.lineno


def test_no_other_file_lists_machines_or_compares_their_names() -> None:
    names = _names()
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.parent != ROOT / "targets" / "machines"
        for text in [path.read_text(encoding="utf-8")]
        if any(name in text for name in names)
        for line in listed(ast.parse(text), names)
    ]
    assert places == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('if machine == "EM_ARM": pass', [1]),
        ('x = {"aarch64": 1}', [1]),
        ('x = ("x86_64", "AMD64")', [1]),
        ('x = names["thumb"]', [1]),
        ('match x:\n  case "arm64": pass', [2]),
        ('x = {"mtriple": "aarch64-linux-gnu"}', []),
        ('get_target("x86-64")', []),
    ],
)
def test_a_planted_list_is_found(line: str, found: list[int]) -> None:
    assert list(listed(ast.parse(line), _names())) == found
