"""Targets by name, and what is missing to compile for them and to run the result."""

from __future__ import annotations

import pickle

import pytest

from ibert_tvm.targets import (
    TargetError,
    TargetStatus,
    check_runtime,
    get_target,
    list_targets,
    target_names,
)
from tests.snapshots import Messages

X86 = ("x86-64", "x86-64-v3", "x86-amx", "x86-avx-vnni", "x86-avx512-vnni")
BOARDS = ("aarch64-dotprod", "aarch64-i8mm", "armv6-softfloat", "armv7-neon", "rpi4")
BOARDS += ("rv64gc", "rv64gcv")
MICROCONTROLLERS = (
    *(f"cortex-m{number}" for number in (0, 3, 4, 7, 33, 55, 85)),
    *("rv32im", "rv32imc"),
)
GPUS = ("a100", "h100", "h200", "t4")
NAMES = ("host", *sorted((*X86, *BOARDS, *MICROCONTROLLERS, *GPUS, "c99", "wasm32")))


def test_names() -> None:
    assert target_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_a_target_of_that_name(name: str) -> None:
    target = get_target(name)
    assert target.name == name
    assert pickle.loads(pickle.dumps(target)) == target  # processes that compile are given it


@pytest.mark.parametrize(
    ("processor", "name"),
    [("cortex-m1", "cortex-m0"), ("cortex-m52", "cortex-m55"), ("esp32-c3", "rv32imc")],
)
def test_processors_that_run_the_code_of_a_target_select_it(processor: str, name: str) -> None:
    assert get_target(processor).name == name
    assert processor not in target_names()


@pytest.mark.parametrize(
    "name", ["x86-64-v4", "hosts", "avx512-vnni", "rpi5", "cortexm4", "a10", ""]
)
def test_an_unknown_target_lists_those_there_are(name: str, messages: Messages) -> None:
    with messages.raises(TargetError, targets=", ".join(target_names())):
        get_target(name)


@pytest.mark.parametrize("name", BOARDS + MICROCONTROLLERS)
def test_a_description_names_its_tools(name: str) -> None:
    target = get_target(name)
    assert target.toolchain is not None and target.emulator is not None
    wide = target.elf_machine == "EM_AARCH64"
    hard = name in ("armv7-neon", "rv64gc", "rv64gcv")
    assert target.float_abi == ("" if wide else "hard" if hard else "soft")
    # TVM's runtime has packages for 64-bit ARM only.
    assert target.runtimes == (("none", "tvm") if wide else ("none",))
    assert bool(target.emulator.board) == (target.system == "bare-metal")
    assert bool(target.emulator.libraries) == (target.system == "linux")


def test_every_target_is_listed_without_any_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for variable in ("CC", "IBERT_CC_RPI4"):
        monkeypatch.delenv(variable, raising=False)
    rows = {row.name: row for row in list_targets()}
    assert tuple(rows) == NAMES
    assert all(isinstance(row, TargetStatus) and row.description for row in rows.values())
    assert not any(row.available or row.compiler for row in rows.values())
    for name in ("host", *X86):
        assert rows[name].missing == (
            "the library's weights are assembled and linked by the system's C compiler; "
            "install one (Debian: apt-get install gcc binutils), or set CC"
        )
    assert rows["rpi4"].missing == (
        "the library's weights are assembled and linked by the target's C compiler; "
        "install it (Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross), "
        "or set IBERT_CC_RPI4"
    )
    assert (rows["host"].runs, rows["host"].runs_missing) == ("this machine", "")


def test_an_emulator_that_is_missing_does_not_make_a_target_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(
        "ibert_tvm.targets.toolchain.find_linker", lambda description: ("/usr/bin/cc", "-x")
    )
    monkeypatch.setenv("PATH", "")
    rows = {row.name: row for row in list_targets()}
    for name, program, package in (
        ("rpi4", "qemu-aarch64", "qemu-user"),
        ("armv7-neon", "qemu-arm", "qemu-user"),
        ("cortex-m4", "qemu-system-arm", "qemu-system-arm"),
    ):
        row = rows[name]
        assert (row.available, row.missing, row.compiler) == (True, "", "/usr/bin/cc -x")
        assert (row.runs, row.runs_missing) == (
            "",
            "this machine (x86_64) cannot run it by itself; "
            f"install it (Debian: apt-get install {package})",
        ), program


def test_a_host_that_is_not_known_is_listed_as_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    host = list_targets()[0]
    assert host == TargetStatus(
        "host",
        "this machine (riscv64)",
        False,
        "host detection knows 64-bit ARM and x86-64; name a target explicitly; "
        "`ibert targets` lists them",
    )


def test_the_runtime_is_the_targets_first_unless_another_is_asked_for() -> None:
    assert check_runtime(get_target("rpi4"), None) == "none"
    assert check_runtime(get_target("rpi4"), "tvm") == "tvm"
    assert check_runtime(get_target("armv7-neon"), None) == "none"


def test_a_runtime_that_a_target_does_not_have_is_refused(messages: Messages) -> None:
    with messages.raises(TargetError):
        check_runtime(get_target("armv7-neon"), "tvm")
    with messages.raises(TargetError):
        check_runtime(get_target("x86-64"), "onnx")
