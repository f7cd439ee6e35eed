"""The example firmware's start-up code: memory, faults, the trap for floating point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from .qemu_board import BoardFault, link_firmware, run_firmware, run_kernel
from .tools import board

TARGETS = ("cortex-m0", "cortex-m3", "cortex-m4", "cortex-m55", "rv32imc")

_KERNEL = """
#include <stdint.h>
static int32_t counter = 41;  /* initialised data and cleared data are in place */
static int32_t zero;
int32_t add(const int8_t *a, const int16_t *b, int64_t *sum, uint8_t *workspace) {
  for (int i = 0; i < 100; ++i) workspace[i] = (uint8_t)i, sum[i] = a[i] + (int64_t)b[i] * 100000;
  return ++counter + zero;
}
"""

# The unit of a Cortex-M4 is switched on in CPACR, that of RISC-V in mstatus.
_FLOAT = """
#include <stdint.h>
#include "semihosting.h"
int main(void) {
  host_print("before\\n");
#ifdef __riscv
  if (ENABLE) __asm__ volatile(".option arch, +zicsr\\ncsrs mstatus, %0" :: "r"(1 << 13));
  __asm__ volatile(".option arch, +f\\nfadd.s fa0, fa1, fa2");
#else
  if (ENABLE) *(volatile uint32_t *)0xe000ed88 |= 15u << 20;
  __asm__ volatile("dsb\\nisb\\n.fpu fpv4-sp-d16\\nvadd.f32 s0, s1, s2");
#endif
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

_MEMORY = """
#include <stddef.h>
#include <stdint.h>
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
void __aeabi_memclr4(void *, size_t);
void __aeabi_memset(void *, size_t, int);
enum { SIZE = 128 };
static uint8_t got[SIZE], want[SIZE];
static int32_t differences(void) {
  int32_t count = 0;
  for (int i = 0; i < SIZE; ++i) count += got[i] != want[i];
  return count;
}
static void fill(void) {
  for (int i = 0; i < SIZE; ++i) got[i] = want[i] = (uint8_t)(i * 37 + 5);
}
/* Every pair of alignments, overlapping both ways, sizes up to several words. */
int32_t check(int32_t *calls) {
  int32_t wrong = 0;
  for (int to = 0; to < 8; ++to)
    for (int from = 0; from < 72; from += from < 8 ? 1 : 61)
      for (int size = 0; size < 45; ++size, ++*calls) {
        uint8_t copy[64];
        fill();
        for (int i = 0; i < size; ++i) copy[i] = want[from + i];
        for (int i = 0; i < size; ++i) want[to + i] = copy[i];
        if (from > 60) wrong += memcpy(got + to, got + from, size) != got + to;
        else wrong += memmove(got + to, got + from, size) != got + to;
        wrong += differences();
        fill();
        for (int i = 0; i < size; ++i) want[to + i] = (uint8_t)(from + 250);
        if (from & 1) __aeabi_memset(got + to, size, from + 250);
        else wrong += memset(got + to, from + 250, size) != got + to;
        wrong += differences();
      }
  fill();
  for (int i = 0; i < 20; ++i) want[4 + i] = 0;
  __aeabi_memclr4(got + 4, 20);
  return wrong + differences();
}
"""


@pytest.mark.parametrize("name", TARGETS)
def test_memory_functions(name: str, tmp_path: Path) -> None:
    source = tmp_path / "check.c"
    source.write_text(_MEMORY)
    run = run_kernel(board(name), [source], "check", [np.zeros(1, "int32")])
    assert run.status == 0
    assert run.arrays[0] == 8 * 10 * 45


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
