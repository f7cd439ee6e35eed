"""What is checked of a library before it is said to be done: its headers, and that it loads."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ibert_tvm.targets import TargetDescription, TargetError
from ibert_tvm.targets.library_check import LibraryCheck, check_elf, check_library, elf_facts
from ibert_tvm.targets.machines.record import Emulator
from ibert_tvm.targets.toolchain import find_linker
from tests.arm.tools import BOARDS, board
from tests.snapshots import Messages

SOURCE = "int ibert_one(void) { return 1; }\n"


def linked(
    target: TargetDescription, folder: Path, source: str = SOURCE, *flags: str, name: str = "l.so"
) -> Path:
    """A small shared library."""
    (folder / "l.c").write_text(source, encoding="utf-8")
    command = [*find_linker(target), "-O1", "-shared", "-fPIC", "l.c", "-o", name, *flags]
    subprocess.run(command, cwd=folder, check=True)
    return folder / name


@pytest.mark.representatives(2)
@pytest.mark.qemu
@pytest.mark.parametrize("name", BOARDS)
def test_a_library_is_loaded_under_its_emulator(name: str, tmp_path: Path) -> None:
    target = board(name)
    library = linked(target, tmp_path)
    check = check_library(library, target, ["ibert_one"], required=True)
    emulator = target.emulator
    assert check == LibraryCheck(True, f"{emulator.program} -cpu {emulator.processor}", 1)
    assert str(check) == f"loaded on {check.by}, 1 symbols found"
    assert check.to_json() == {
        "checked": True,
        "by": check.by,
        "symbols": 1,
        "reason": "",
        "todo": "",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l.c", "l.so"]


@pytest.mark.qemu
@pytest.mark.parametrize("name", ["rpi4", "armv6-softfloat"])
def test_a_symbol_that_nobody_has_is_an_error(name: str, tmp_path: Path) -> None:
    target = board(name)
    library = linked(target, tmp_path, "int f(int); int ibert_one(void) { return f(1); }\n")
    with pytest.raises(TargetError) as caught:
        check_library(library, target, ["ibert_one"])
    emulator = target.emulator
    assert str(caught.value) == (
        "the linked library cannot be used on its target\n"
        f"  where: target {name!r}, l.so, loaded on {emulator.program} -cpu {emulator.processor}\n"
        "  why: undefined symbol: f\n"
        "  what to do: check that the C toolchain works for this target; see `ibert doctor`"
    )


@pytest.mark.qemu
def test_every_symbol_that_a_runtime_would_miss_is_named(
    tmp_path: Path, messages: Messages
) -> None:
    target = board("rpi4")
    library = linked(target, tmp_path)
    with messages.raises(TargetError):
        check_library(library, target, ["ibert_run", "ibert_one", "ibert_init"])


@pytest.mark.qemu
def test_functions_of_tvms_runtime_are_offered_if_it_has_them(
    tmp_path: Path, messages: Messages
) -> None:
    pytest.importorskip("tvm_ffi")
    target = board("rpi4")
    call = "void {0}(void); void ibert_one(void) {{ {0}(); }}\n"
    library = linked(target, tmp_path, call.format("TVMFFIErrorSetRaisedFromCStrParts"))
    assert check_library(library, target, ["ibert_one"]).checked
    library = linked(target, tmp_path, call.format("TVMFFINoSuchThing"))
    with messages.raises(TargetError):
        check_library(library, target, ["ibert_one"])


@pytest.mark.qemu
def test_a_library_that_faults_while_it_is_loaded_is_an_error(
    tmp_path: Path, messages: Messages
) -> None:
    target = board("armv6-softfloat")
    # Its processor has no floating-point unit: a constructor that uses one is ended by SIGILL.
    source = '__attribute__((constructor)) void f(void) { __asm__(".fpu vfp\\n vmov r0, s0"); }\n'
    library = linked(target, tmp_path, source)
    with messages.raises(TargetError):
        check_elf(library, target)
    hidden = '__attribute__((constructor)) void f(void) { __asm__(".inst 0xee100a10"); }\n'
    library = linked(target, tmp_path, hidden)
    with pytest.raises(TargetError) as caught:
        check_library(library, target, [])
    assert "signal 4" in caught.value.why


def test_without_emulator_the_result_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    target = board("rpi4", run=False)
    library = linked(target, tmp_path)
    emulator = Emulator("no-such-emulator", "qemu-user")
    gone = replace(target, machine=replace(target.machine, emulator=emulator))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    check = check_library(library, gone, ["ibert_one"])
    assert check == LibraryCheck(
        False,
        reason="no emulator to run code for target 'rpi4': "
        "this machine (x86_64) cannot run it by itself",
        todo="install it (Debian: apt-get install qemu-user)",
    )
    assert str(check) == f"NOT loaded: {check.reason}; {check.todo}"
    with messages.raises(TargetError):
        check_library(library, gone, ["ibert_one"], required=True)
    # The emulator alone is not enough: programs need the target's C library.
    tools = target.machine.toolchains[""]
    moved = replace(tools, machine="aarch64-nowhere-linux-gnu", command=tools.compiler)
    bare = replace(target, machine=replace(target.machine, toolchains={"": moved}))
    if target.emulator and check_library(library, target, []).checked:
        check = check_library(library, bare, ["ibert_one"])
        assert not check.checked
        assert check.reason == (
            "no C library to run code for target 'rpi4' with: "
            "a program under the emulator uses the target's own C library"
        )
        assert check.todo == (
            "install it (Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross)"
        )


# -- headers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOARDS)
def test_headers_of_every_board(name: str, tmp_path: Path) -> None:
    target = board(name, run=False)
    library = linked(target, tmp_path)
    facts = elf_facts(library, target.machine)
    assert (facts.machine, facts.bits) == (target.elf_machine, target.machine.bits)
    assert facts.little_endian
    assert facts.floats.abi == target.float_abi
    assert facts.floats.unit == (target.float_abi == "hard")
    assert facts.floats.vectors == (name in ("armv7-neon", "rv64gcv"))
    check_elf(library, target)


@pytest.mark.parametrize(
    ("made_for", "wanted"),
    [
        ("rpi4", "armv7-neon"),
        ("armv7-neon", "rpi4"),
        ("armv7-neon", "armv6-softfloat"),
        ("armv6-softfloat", "armv7-neon"),
    ],
)
def test_a_library_for_another_board_is_refused(
    made_for: str, wanted: str, tmp_path: Path, messages: Messages
) -> None:
    library = linked(board(made_for, run=False), tmp_path)
    with messages.raises(TargetError):
        check_elf(library, board(wanted, run=False))


def test_code_for_a_vector_unit_is_refused_on_a_board_without_one(
    tmp_path: Path, messages: Messages
) -> None:
    target = board("armv6-softfloat", run=False)
    # Soft calling convention, but compiled to use the registers: what -mfloat-abi=softfp means.
    flags = ("-march=armv7-a", "-mfpu=neon", "-mfloat-abi=softfp")
    library = linked(target, tmp_path, SOURCE, *flags)
    with messages.raises(TargetError):
        check_elf(library, target)


@pytest.mark.parametrize("form", ["big-endian", "abi=ilp32"])
def test_another_form_of_its_machine_is_refused(
    form: str, tmp_path: Path, messages: Messages
) -> None:
    target = board("rpi4", run=False)
    (tmp_path / "l.c").write_text(SOURCE, encoding="utf-8")
    command = [*find_linker(target), f"-m{form}", "-c", "l.c", "-o", "l.o"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with messages.raises(TargetError):
        check_elf(tmp_path / "l.o", target)
