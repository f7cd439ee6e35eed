"""The example firmware's start-up code: memory, faults, the trap for floating point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .qemu_board import BoardFault, link_firmware, run_firmware, run_kernel
from .tools import board

TARGETS = ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55", "rv32imc")

_KERNEL = Path(__file__).with_name("firmware_kernel.c")

# The unit of a Cortex-M4 is switched on in CPACR, that of RISC-V in mstatus.
_FLOAT = Path(__file__).with_name("firmware_float.c").read_text(encoding="utf-8")

_RECURSION = Path(__file__).with_name("firmware_recursion.c").read_text(encoding="utf-8")

_MEMORY = Path(__file__).with_name("firmware_memory.c")


@pytest.mark.parametrize("name", TARGETS)
def test_memory_functions(name: str) -> None:
    run = run_kernel(board(name), [_MEMORY], "check", [np.zeros(1, "int32")])
    assert run.status == 0
    assert run.arrays[0] == 8 * 10 * 45


@pytest.mark.parametrize("name", TARGETS)
def test_a_kernel_gets_its_arguments_and_gives_them_back(name: str) -> None:
    target = board(name)
    random = np.random.default_rng(0)
    a = random.integers(-128, 128, 100).astype("int8")
    b = random.integers(-(2**15), 2**15, (4, 25)).astype("int16")
    total, workspace = np.zeros((10, 10), "int64"), np.full(100, 7, "uint8")
    run = run_kernel(target, [_KERNEL], "add", [a, b, total, workspace])
    assert run.status == 42
    np.testing.assert_array_equal(run.arrays[0], a)
    np.testing.assert_array_equal(run.arrays[1], b)
    expected = a.astype("int64") + b.reshape(-1).astype("int64") * 100000
    np.testing.assert_array_equal(run.arrays[2], expected.reshape(10, 10))
    np.testing.assert_array_equal(run.arrays[3], np.arange(100))
    assert 0 < run.stack_bytes < 1024


def _firmware(name: str, text: str, folder: Path, **symbols: int) -> Path:
    source = folder / "program.c"
    source.write_text(text)
    return link_firmware(board(name), [source], folder / "program.elf", symbols=symbols)


@pytest.mark.parametrize(
    ("name", "reason"),
    [  # Bit 19 of CFSR is NOCP: no coprocessor. Cause 2 is an illegal instruction.
        ("cortex-m4", "UsageFault CFSR=0x00080000 HFSR=0x00000000 PC=0x"),
        ("rv32imc", "mcause=0x00000002 mepc=0x80"),
    ],
)
def test_a_floating_point_instruction_is_a_fault(name: str, reason: str, tmp_path: Path) -> None:
    elf = _firmware(name, _FLOAT.replace("ENABLE", "0"), tmp_path)
    with pytest.raises(BoardFault) as fault:
        run_firmware(name, elf, tmp_path)
    assert f"before\nfault: {reason}" in str(fault.value)
    assert "after" not in str(fault.value)


@pytest.mark.parametrize("name", ["cortex-m4", "rv32imc"])
def test_with_the_unit_switched_on_the_same_instruction_runs(name: str, tmp_path: Path) -> None:
    elf = _firmware(name, _FLOAT.replace("ENABLE", "1"), tmp_path)
    assert run_firmware(name, elf, tmp_path).stdout.endswith("before\nafter\n")


@pytest.mark.representatives(2)
@pytest.mark.parametrize("name", TARGETS)
def test_an_overflow_of_the_stack_is_a_fault(name: str, tmp_path: Path) -> None:
    elf = _firmware(name, _RECURSION, tmp_path, __stack_size=4096)
    with pytest.raises(BoardFault, match=r"(?i)fault: \w+.* stack overflow, sp=0x"):
        run_firmware(name, elf, tmp_path)


def test_another_exit_status_is_told(tmp_path: Path) -> None:
    elf = _firmware("cortex-m3", "int main(void) { return 3; }", tmp_path)
    with pytest.raises(BoardFault, match="status 3"):
        run_firmware("cortex-m3", elf, tmp_path)
