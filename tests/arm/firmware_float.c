#include <stdint.h>
#include "semihosting.h"
int main(void) {
  host_print("before\n");
#ifdef __riscv
  if (ENABLE) __asm__ volatile(".option arch, +zicsr\ncsrs mstatus, %0" :: "r"(1 << 13));
  __asm__ volatile(".option arch, +f\nfadd.s fa0, fa1, fa2");
#else
  if (ENABLE) *(volatile uint32_t *)0xe000ed88 |= 15u << 20;
  __asm__ volatile("dsb\nisb\n.fpu fpv4-sp-d16\nvadd.f32 s0, s1, s2");
#endif
  host_print("after\n");
  return 0;
}
