"""A machine that only this file knows: its target is registered, compiled for and audited."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

import ibert_tvm as ibert
from ibert_tvm.targets import (
    TargetDescription,
    TargetError,
    get_target,
    list_targets,
    register_target,
    target_names,
    unregister_target,
)
from ibert_tvm.targets.aot.objects import check_undefined
from ibert_tvm.targets.catalogue import CATALOGUE
from ibert_tvm.targets.elf import ELF
from ibert_tvm.targets.library_audit import read_listing
from ibert_tvm.targets.library_check import check_elf
from ibert_tvm.targets.machines.code import FlowRules
from ibert_tvm.targets.machines.record import Linux, Machine
from ibert_tvm.targets.processors.cortex_m import NO_DOT_SCALAR
from ibert_tvm.targets.rpc import BoardDescription
from ibert_tvm.targets.toolchain import compiles_for
from tests.arm.small_bert import small_bert
from tests.snapshots import Messages

_FLOATING = re.compile(r"f(?!ence)\w+\.[sdhq](?:\.\w+)*|c?\.?f[ls][dw](?:sp)?")


def _is_floating_point(mnemonic: str, operands: str, has_registers: bool) -> bool:
    return _FLOATING.fullmatch(mnemonic) is not None


TOY = Machine(
    name="toy",
    title="64-bit toy",
    elf_machine="EM_RISCV",
    bits=64,
    triples=re.compile("riscv64"),
    is_floating_point=_is_floating_point,
    flow=FlowRules(lambda _: None, lambda _one, _name: (), frozenset(), frozenset()),
    toolchains={},
    emulator=None,
    system=Linux(names=("toy64",), runtimes=("none",), capabilities={(0, 21): "v"}),
)
BOARD = TargetDescription(
    name="toy-board",
    description="a machine of the tests",
    machine=TOY,
    tvm_target={
        "kind": "llvm",
        "mcpu": "generic-rv64",
        "mtriple": "riscv64-linux-gnu",
        "mattr": ["+m"],
    },
    dot=NO_DOT_SCALAR,
    vector_lanes=1,
    required_features=("v",),
)


@pytest.fixture
def board() -> Iterator[TargetDescription]:
    register_target(BOARD)
    yield BOARD
    unregister_target(BOARD.name)


def _listing(data: bytes) -> str:
    """Code of an object, as objdump prints it."""
    import capstone

    machine = capstone.Cs(capstone.CS_ARCH_RISCV, capstone.CS_MODE_RISCV64)
    elf = ELFFile(io.BytesIO(data))
    lines = []
    for section in elf.iter_sections():
        if section["sh_flags"] & 4 and section["sh_size"]:
            lines.append(f"{0:016x} <{section.name}>:")
            end = 0
            for address, size, mnemonic, operands in machine.disasm_lite(section.data(), 0):
                lines.append(f"  {address:x}:\t{mnemonic}\t{operands}")
                end = address + size
            assert end == section["sh_size"]
    return "\n".join(lines)


def test_a_registered_target_is_listed(board: TargetDescription) -> None:
    assert get_target("toy-board") is board
    assert "toy-board" in target_names()
    (row,) = (row for row in list_targets() if row.name == "toy-board")
    assert (row.description, row.runtimes, row.system) == (
        "a machine of the tests", ("none",), "linux",
    )  # fmt: skip


@pytest.mark.slow
def test_a_model_is_compiled_to_objects_without_floating_point(
    board: TargetDescription, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objcopy = shutil.which("llvm-objcopy")  # that of the host knows the host's machine only
    if objcopy is None:
        pytest.skip("llvm-objcopy is not installed (Debian: apt-get install llvm)")
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\necho {objcopy}\n", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("IBERT_CC_TOY_BOARD", str(compiler))
    program = ibert.compile(small_bert(), target=board.name, shapes=[(1, 5)], runtime="none")
    assert program.bare is not None and len(program.bare.objects) > 5
    for name, data in program.bare.objects.items():
        (tmp_path / "kernel.o").write_bytes(data)
        check_elf(tmp_path / "kernel.o", board)
        check_undefined(name, ELF.undefined(data), board)
        audit = read_listing(_listing(data), board)
        assert audit.instructions > 0 and audit.findings == (), name


def test_the_rules_of_the_machine_find_floating_point() -> None:
    audit = read_listing("0 <f>:\n  4:\tfadd.s\tfa0, fa0, fa1\n  8:\tadd\ta0, a0, a1\n", BOARD)
    assert audit.findings == ("f at 0x4: fadd.s fa0, fa0, fa1",)


def test_everybody_asks_the_record(board: TargetDescription, tmp_path: Path) -> None:
    assert not compiles_for("riscv64-unknown-linux-gnu", "aarch64-linux-gnu")
    assert compiles_for("riscv64-unknown-linux-gnu", "riscv64-linux-gnu")
    assert CATALOGUE.running_on("toy64") is TOY
    said = BoardDescription.parse("machine toy64\nprocessors 4\ncapabilities 200000 0\n")
    assert said.features == {"v"}


def test_a_second_target_of_a_name_is_refused(board: TargetDescription, messages: Messages) -> None:
    for name in ("toy-board", "rpi4"):
        with messages.raises(TargetError):
            register_target(replace(board, name=name))


@pytest.mark.parametrize("name", ["", "host", " x", "cuda:sm_75", "t4+a100"])
def test_a_name_that_cannot_be_one_is_refused(name: str, messages: Messages) -> None:
    with messages.raises(TargetError):
        register_target(replace(BOARD, name=name))


def test_two_machines_of_one_name_are_refused(board: TargetDescription, messages: Messages) -> None:
    other = replace(board, name="other", machine=replace(TOY, title="another"))
    with messages.raises(TargetError):
        register_target(other)


def test_only_registered_targets_can_be_removed(messages: Messages) -> None:
    for name in ("toy-board", "rpi4"):
        with messages.raises(TargetError):
            unregister_target(name)
