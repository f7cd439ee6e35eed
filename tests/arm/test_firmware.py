"""The example firmware's start-up code: memory, faults, the trap for floating point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .qemu_board import BoardFault, link_firmware, run_firmware, run_kernel
from .tools import board

TARGETS = ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55")

_KERNEL = """
#include <stdint.h>
static int32_t counter = 41;  /* initialised data and cleared data are in place */
static int32_t zero;
int32_t add(const int8_t *a, const int16_t *b, int64_t *sum, uint8_t *workspace) {
  for (int i = 0; i < 100; ++i) workspace[i] = (uint8_t)i, sum[i] = a[i] + (int64_t)b[i] * 100000;
  return ++counter + zero;
}
"""

_FLOAT = """
#include <stdint.h>
#include "semihosting.h"
int main(void) {
  host_print("before\\n");
  if (ENABLE) *(volatile uint32_t *)0xe000ed88 |= 15u << 20;
  __asm__ volatile("dsb\\nisb\\n.fpu fpv4-sp-d16\\nvadd.f32 s0, s1, s2");
  host_print("after\\n");
  return 0;
}
"""

_RECURSION = """
#include <stdint.h>
__attribute__((noinline)) static int32_t deep(volatile int32_t *at, int32_t level) {
  volatile int32_t here[64];
  here[0] = at[0] + level;
  return level == 0 ? here[0] : deep(here, level - 1) + here[0];
}
int main(void) {
  volatile int32_t start = 1;
  return deep(&start, 1000000) == 0;
}
"""


@pytest.mark.parametrize("name", TARGETS)
def test_a_kernel_gets_its_arguments_and_gives_them_back(name: str, tmp_path: Path) -> None:
    target = board(name)
    source = tmp_path / "add.c"
    source.write_text(_KERNEL)
    random = np.random.default_rng(0)
    a = random.integers(-128, 128, 100).astype("int8")
    b = random.integers(-(2**15), 2**15, (4, 25)).astype("int16")
    total, workspace = np.zeros((10, 10), "int64"), np.full(100, 7, "uint8")
    run = run_kernel(target, [source], "add", [a, b, total, workspace])
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


def test_a_floating_point_instruction_is_a_fault(tmp_path: Path) -> None:
    elf = _firmware("cortex-m4", _FLOAT.replace("ENABLE", "0"), tmp_path)
    with pytest.raises(BoardFault) as fault:
        run_firmware("cortex-m4", elf, tmp_path)
    # Bit 19 of CFSR is NOCP: no coprocessor.
    assert "before\nfault: UsageFault CFSR=0x00080000 HFSR=0x00000000 PC=0x" in str(fault.value)
    assert "after" not in str(fault.value)


def test_with_the_unit_switched_on_the_same_instruction_runs(tmp_path: Path) -> None:
    elf = _firmware("cortex-m4", _FLOAT.replace("ENABLE", "1"), tmp_path)
    assert run_firmware("cortex-m4", elf, tmp_path).stdout.endswith("before\nafter\n")


@pytest.mark.parametrize("name", TARGETS)
def test_an_overflow_of_the_stack_is_a_fault(name: str, tmp_path: Path) -> None:
    elf = _firmware(name, _RECURSION, tmp_path, __stack_size=4096)
    with pytest.raises(BoardFault, match=r"fault: \w+.* stack overflow, SP=0x"):
        run_firmware(name, elf, tmp_path)


def test_another_exit_status_is_told(tmp_path: Path) -> None:
    elf = _firmware("cortex-m3", "int main(void) { return 3; }", tmp_path)
    with pytest.raises(BoardFault, match="status 3"):
        run_firmware("cortex-m3", elf, tmp_path)
