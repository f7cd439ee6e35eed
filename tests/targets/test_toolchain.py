"""Finding the C compiler driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.targets import TargetError, get_target
from ibert_tvm.targets.toolchain import compiles_for, find_linker
from tests.snapshots import Messages

TARGET = get_target("x86-64")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the whole PATH; CC unset."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path


def program(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text("#!/bin/sh\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_gcc_is_preferred_to_cc_and_clang(programs: Path) -> None:
    clang = program(programs, "clang")
    assert find_linker(TARGET) == (clang,)
    cc = program(programs, "cc")
    assert find_linker(TARGET) == (cc,)
    gcc = program(programs, "gcc")
    assert find_linker(TARGET) == (gcc,)


def test_the_environment_variable_wins(programs: Path, monkeypatch) -> None:
    program(programs, "gcc")
    mine = program(programs, "my-cc")
    monkeypatch.setenv("CC", "my-cc")
    assert find_linker(TARGET) == (mine,)
    monkeypatch.setenv("CC", mine)
    assert find_linker(TARGET) == (mine,)
    monkeypatch.setenv("CC", "my-cc  -m64 --sysroot=/opt")
    assert find_linker(TARGET) == (mine, "-m64", "--sysroot=/opt")
    monkeypatch.setenv("CC", "")
    assert find_linker(TARGET) == (str(programs / "gcc"),)


@pytest.mark.parametrize(
    "variable", [None, "icc", "ccache gcc", " "], ids=["unset", "icc", "ccache gcc", "blank"]
)
def test_no_compiler_is_an_error(programs: Path, monkeypatch, variable, messages: Messages) -> None:
    if variable is not None:
        program(programs, "clang")
        monkeypatch.setenv("CC", variable)
    with messages.raises(TargetError):
        find_linker(TARGET)


# -- compilers for another machine ---------------------------------------------------------------

BOARD = get_target("armv7-neon")
FLAGS = ("-mcpu=cortex-a7", "-mfpu=neon-vfpv4")


def compiler(folder: Path, name: str, machine: str) -> str:
    """A program that answers -dumpmachine."""
    path = folder / name
    text = f'#!/bin/sh\nfor last; do :; done\n[ "$last" = -dumpmachine ] && echo {machine}\n'
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the whole PATH; no variable set."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "IBERT_CC_ARMV7_NEON"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def test_a_cross_compiler_is_the_targets_own(empty: Path) -> None:
    own = compiler(empty, "arm-linux-gnueabihf-gcc", "arm-linux-gnueabihf")
    compiler(empty, "gcc", "x86_64-linux-gnu")
    assert find_linker(BOARD) == (own, *FLAGS)


def test_cc_is_taken_where_it_is_for_the_targets_machine(empty: Path, monkeypatch) -> None:
    own = compiler(empty, "arm-linux-gnueabihf-gcc", "arm-linux-gnueabihf")
    mine = compiler(empty, "sdk-gcc", "armv7l-vendor-linux-gnueabihf")
    monkeypatch.setenv("CC", "sdk-gcc --sysroot=/sdk")
    assert find_linker(BOARD) == (mine, "--sysroot=/sdk", *FLAGS)
    # The host's compiler, and one for the same processor with another ABI.
    for machine in ("x86_64-linux-gnu", "arm-linux-gnueabi", "aarch64-linux-gnu"):
        compiler(empty, "sdk-gcc", machine)
        assert find_linker(BOARD) == (own, *FLAGS)


def test_on_the_board_its_own_compiler_serves(empty: Path) -> None:
    gcc = compiler(empty, "gcc", "arm-unknown-linux-gnueabihf")
    assert find_linker(BOARD) == (gcc, *FLAGS)


def test_the_targets_variable_wins_and_must_be_right(
    empty: Path, monkeypatch, messages: Messages
) -> None:
    compiler(empty, "arm-linux-gnueabihf-gcc", "arm-linux-gnueabihf")
    mine = compiler(empty, "my-gcc", "arm-none-linux-gnueabihf")
    monkeypatch.setenv("CC", compiler(empty, "sdk-gcc", "arm-linux-gnueabihf"))
    monkeypatch.setenv("IBERT_CC_ARMV7_NEON", "my-gcc -B/tools")
    assert find_linker(BOARD) == (mine, "-B/tools", *FLAGS)
    compiler(empty, "my-gcc", "x86_64-linux-gnu")
    with messages.raises(TargetError):
        find_linker(BOARD)
    monkeypatch.setenv("IBERT_CC_ARMV7_NEON", "missing-gcc")
    with messages.raises(TargetError):
        find_linker(BOARD)


def test_the_targets_variable_chooses_a_compiler_for_the_host_too(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(programs, "gcc")
    mine = program(programs, "my-cc")
    monkeypatch.setenv("IBERT_CC_X86_64", "my-cc -m64")
    assert find_linker(TARGET) == (mine, "-m64")


def test_no_cross_compiler_is_an_error_that_names_the_packages(
    empty: Path, messages: Messages
) -> None:
    with messages.raises(TargetError):
        find_linker(BOARD)


def test_compilers_for_other_machines_are_named(empty: Path, messages: Messages) -> None:
    compiler(empty, "arm-linux-gnueabihf-gcc", "arm-linux-gnueabi")
    compiler(empty, "gcc", "x86_64-linux-gnu")
    (empty / "cc").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    (empty / "cc").chmod(0o755)
    with messages.raises(TargetError):
        find_linker(BOARD)


@pytest.mark.parametrize(
    ("answer", "machine", "same"),
    [
        ("aarch64-linux-gnu", "aarch64-linux-gnu", True),
        ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu", True),
        ("aarch64-poky-linux", "aarch64-linux-gnu", True),
        ("aarch64-none-linux-gnu", "aarch64-linux-gnu", True),
        ("aarch64-linux-musl", "aarch64-linux-gnu", False),
        ("aarch64-linux-android", "aarch64-linux-gnu", False),
        ("aarch64-none-elf", "aarch64-linux-gnu", False),
        ("aarch64_be-linux-gnu", "aarch64-linux-gnu", False),
        ("armv6l-unknown-linux-gnueabihf", "arm-linux-gnueabihf", True),
        ("arm-none-linux-gnueabihf", "arm-linux-gnueabihf", True),
        ("armeb-linux-gnueabihf", "arm-linux-gnueabihf", False),
        ("arm-linux-gnueabi", "arm-linux-gnueabihf", False),
        ("arm-none-eabi", "arm-none-eabi", True),
        ("arm-linux-gnueabi", "arm-none-eabi", False),
        ("x86_64-linux-gnu", "aarch64-linux-gnu", False),
        ("", "aarch64-linux-gnu", False),
        ("no machine at all", "aarch64-linux-gnu", False),
    ],
)
def test_machines_are_compared_by_processor_system_and_abi(
    answer: str, machine: str, same: bool
) -> None:
    assert compiles_for(answer, machine) is same
