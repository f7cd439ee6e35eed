"""Instruction counts are exact: programs in assembly, whose instructions were counted by hand."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.arm.counting import Counting, Counts, count, emulator_command
from benchmarks.arm.errors import CountingError
from ibert_tvm.targets import TargetDescription, get_target
from tests.arm.tools import needs
from tests.snapshots import Messages

# Ends by semihosting's SYS_EXIT_EXTENDED with status 0.
_CORTEX_M = Path(__file__).with_name("counted_cortex_m.s").read_text(encoding="utf-8")
_WORK = 2 + 2 * 1000 + 1 + 2 + 1

_AARCH64 = Path(__file__).with_name("counted_aarch64.s").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def microcontroller() -> TargetDescription:
    needs("arm-none-eabi-gcc", "qemu-system-arm", "llvm-objdump-14")
    return get_target("cortex-m3")


@pytest.fixture(scope="module")
def firmware(microcontroller: TargetDescription, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("firmware")
    (folder / "program.s").write_text(_CORTEX_M)
    script = "SECTIONS { .text 0 : { *(.vectors) *(.text) } }"
    (folder / "program.ld").write_text(script)
    return _link(folder, "arm-none-eabi-gcc", "-mcpu=cortex-m3", "-mthumb", "-Tprogram.ld")


def _link(folder: Path, *command: str) -> Path:
    subprocess.run(
        [*command, "-nostdlib", "-static", "-Wl,-z,noexecstack", "program.s", "-o", "program"],
        cwd=folder,
        check=True,
    )
    return folder / "program"


def _work(firmware: Path, target: TargetDescription) -> Counts:
    return count(firmware, target, ["helper", "again"], within="work")


def test_a_function_of_known_length_counts_exactly(
    firmware: Path, microcontroller: TargetDescription
) -> None:
    counts = _work(firmware, microcontroller)
    assert counts.instructions == _WORK
    assert counts.of("work") == _WORK
    assert counts.by_symbol == {"work": _WORK - 2, "helper": 2}
    assert counts.by_mnemonic["subs"] == 1000
    assert (counts.floating_point, counts.unknown) == (0, 0)


def test_the_same_run_gives_the_same_counts(
    firmware: Path, microcontroller: TargetDescription
) -> None:
    assert _work(firmware, microcontroller) == _work(firmware, microcontroller)


def test_calls_are_those_that_happened(firmware: Path, microcontroller: TargetDescription) -> None:
    """A loop to the first instruction is no call, nor is a call whose condition is false.

    The first call of `again` finds r5 = 0: `subs`, `bpl`, and a call skipped since the flags say
    -1, then a tail call. The second one finds 2: three rounds.
    """
    counts = _work(firmware, microcontroller)
    lengths = [(call.function, call.level, call.instructions) for call in counts.calls]
    helper = ("helper", 1, 2)
    assert lengths == [
        *(helper, ("work", 0, _WORK)),
        *(helper, ("again", 0, 2 + 2 + 2 + 2)),
        *(helper, ("again", 0, 6 + 2 + 2 + 2)),
    ]


def test_between_labels(firmware: Path, microcontroller: TargetDescription) -> None:
    counts = count(firmware, microcontroller, between=("first", "last"))
    assert counts.instructions == 1 + 2 * 1000


def test_everything(firmware: Path, microcontroller: TargetDescription) -> None:
    counts = count(firmware, microcontroller)
    assert counts.by_symbol["reset"] == 3 + 3
    assert counts.instructions == 6 + _WORK + 8 + 12


def test_floating_point_is_counted(tmp_path: Path) -> None:
    needs("aarch64-linux-gnu-gcc", "qemu-aarch64", "llvm-objdump-14")
    target = get_target("aarch64-i8mm")
    (tmp_path / "program.s").write_text(_AARCH64)
    program = _link(tmp_path, "aarch64-linux-gnu-gcc", "-march=armv8.2-a+dotprod+i8mm")
    counts = count(program, target, within="work")
    assert counts.instructions == 2 + 7 * 6 + 1
    assert counts.floating_point_mnemonics == {"fadd": 7}
    assert counts.floating_point == 7
    assert (counts.by_mnemonic["sdot"], counts.by_mnemonic["smmla"]) == (7, 7)
    assert counts.unknown == 0


def test_any_vector_instruction_counts_where_there_is_no_unit(
    microcontroller: TargetDescription, tmp_path: Path
) -> None:
    """The processor that runs this has a unit, the one that it is counted for has none."""
    text = _CORTEX_M.replace("    nop\n", "    vmov s0, r0\n").replace(
        "reset:\n", "reset:\n    ldr r0, =0xe000ed88\n    ldr r1, =0xf00000\n    str r1, [r0]\n"
    )
    (tmp_path / "program.s").write_text(text)
    (tmp_path / "program.ld").write_text("SECTIONS { .text 0 : { *(.vectors) *(.text) } }")
    compiler = ("arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=softfp")
    program = _link(tmp_path, *compiler, "-mfpu=fpv4-sp-d16", "-Tprogram.ld")
    command = emulator_command(get_target("cortex-m4"), program)
    counts = count(program, microcontroller, within="work", command=command)
    assert counts.floating_point == 1


def test_a_symbol_that_is_missing(
    firmware: Path, microcontroller: TargetDescription, messages: Messages
) -> None:
    with messages.raises(CountingError):
        count(firmware, microcontroller, within="kernel")


def test_a_function_that_does_not_return(
    firmware: Path, microcontroller: TargetDescription, messages: Messages
) -> None:
    with messages.raises(CountingError):
        count(firmware, microcontroller, ["reset"])


def test_a_program_without_fixed_addresses(tmp_path: Path, messages: Messages) -> None:
    needs("aarch64-linux-gnu-gcc")
    (tmp_path / "program.s").write_text(_AARCH64)
    command = ["aarch64-linux-gnu-gcc", "-march=armv8.2-a+dotprod+i8mm", "-nostdlib", "-pie"]
    subprocess.run([*command, "program.s", "-o", "program"], cwd=tmp_path, check=True)
    with messages.raises(CountingError):
        count(tmp_path / "program", get_target("aarch64-i8mm"))


def test_no_result_of_the_plugin(
    firmware: Path, microcontroller: TargetDescription, messages: Messages
) -> None:
    counting = Counting(firmware, microcontroller)
    with counting, messages.raises(CountingError):
        counting.counts()


def test_no_emulator(firmware: Path, messages: Messages) -> None:
    with messages.raises(CountingError):
        count(firmware, get_target("x86-64-v3"))
