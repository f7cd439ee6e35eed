/* Start-up code for 32-bit RISC-V: memory, a guard below the stack, faults.
 *
 * A floating-point unit stays as reset leaves it, off (mstatus.FS): any floating-point instruction
 * is an illegal instruction, and the handler below says so and stops. */
#include "board.h"
#include "semihosting.h"

extern uint32_t __stack_limit[], __stack_top[];
extern uint32_t __data_load[], __data_start[], __data_end[];
extern uint32_t __bss_start[], __bss_end[];

int main(void);
void Reset_Handler(void);

enum { PAINT = 0x5aa5f00d, GUARD_BYTES = 0x10000 };

__attribute__((used)) static void report_fault(uint32_t cause, uint32_t address, uint32_t value,
                                               uint32_t stack) {
  host_print("fault: mcause=");
  host_print_hex(cause);
  host_print(" mepc=");
  host_print_hex(address);
  host_print(" mtval=");
  host_print_hex(value);
  if (stack < (uint32_t)__stack_limit || stack > (uint32_t)__stack_top) {
    host_print(" stack overflow, sp=");
    host_print_hex(stack);
  }
  host_print("\n");
  host_exit(BOARD_FAULT);
}

/* Starts with a fresh stack: the fault may be that the old one is full. */
__attribute__((naked, used, aligned(4))) static void Fault_Handler(void) {
  __asm__ volatile(
      ".option arch, +zicsr\n"
      "csrr a0, mcause\n"
      "csrr a1, mepc\n"
      "csrr a2, mtval\n"
      "mv a3, sp\n"
      "la sp, __stack_top\n"
      "j report_fault\n");
}

uint32_t board_stack_used(void) {
  const uint32_t *at = __stack_limit;
  while (at < __stack_top && *at == PAINT) ++at;
  return (uint32_t)((const char *)__stack_top - (const char *)at);
}

__attribute__((used)) static void start(void) {
  const uint32_t *from = __data_load;
  for (uint32_t *to = __data_start; to < __data_end;) *to++ = *from++;
  for (uint32_t *to = __bss_start; to < __bss_end;) *to++ = 0;
  /* What is above the frame of this function is in use. */
  uint32_t *const used = (uint32_t *)__builtin_frame_address(0) - 16;
  for (uint32_t *to = __stack_limit; to < used;) *to++ = PAINT;
  /* Where the stack ends: a locked entry of the memory protection, a power of two of bytes that
   * nothing may touch (Privileged Architecture, section 3.7.1). */
  const uint32_t guard = ((uint32_t)__stack_limit - GUARD_BYTES) / 4 | (GUARD_BYTES / 8 - 1);
  __asm__ volatile(".option arch, +zicsr\ncsrw pmpaddr0, %0\ncsrw pmpcfg0, %1\n" ::"r"(guard),
                   "r"(0x98));
  host_exit(main());
}

__attribute__((naked, section(".vectors"), used)) void Reset_Handler(void) {
  __asm__ volatile(
      ".option arch, +zicsr\n"
      "la sp, __stack_top\n"
      "la t0, %0\n"
      "csrw mtvec, t0\n"
      "j start\n" ::"i"(Fault_Handler));
}
