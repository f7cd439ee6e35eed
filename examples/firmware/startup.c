/* Start-up code for any Cortex-M: vector table, memory, faults.
 *
 * On a Cortex-M4 the floating-point unit stays as reset leaves it, off: any floating-point
 * instruction is a usage fault (CFSR bit 19, NOCP), and the handler below says so and stops. On a
 * Cortex-M55 it is switched on, because the integer vectors of MVE are in its registers. */
#include "board.h"
#include "semihosting.h"

extern uint32_t __stack_limit[], __stack_top[];
extern uint32_t __data_load[], __data_start[], __data_end[];
extern uint32_t __bss_start[], __bss_end[];

int main(void);
void Reset_Handler(void);
void Fault_Handler(void);

#define REGISTER(address) (*(volatile uint32_t *)(address))
enum { PAINT = 0x5aa5f00d };

static const char *const fault_names[] = {"NMI", "HardFault", "MemManage", "BusFault", "UsageFault"};

__attribute__((used)) static void report_fault(const uint32_t *frame, uint32_t exception) {
  host_print("fault: ");
  host_print(exception >= 2 && exception <= 6 ? fault_names[exception - 2] : "exception");
#if defined(__ARM_ARCH_6M__)
  host_print(" (ARMv6-M keeps no fault status)");
#else
  host_print(" CFSR=");
  host_print_hex(REGISTER(0xe000ed28));
  host_print(" HFSR=");
  host_print_hex(REGISTER(0xe000ed2c));
#endif
  /* A fault while the stack itself is out of memory leaves no frame to read. */
  if (frame >= __stack_limit && frame + 8 <= __stack_top) {
    host_print(" PC=");
    host_print_hex(frame[6]);
  } else {
    host_print(" stack overflow, SP=");
    host_print_hex((uint32_t)frame);
  }
  host_print("\n");
  host_exit(BOARD_FAULT);
}

/* Starts with a fresh stack: the fault may be that the old one is full. */
__attribute__((naked)) void Fault_Handler(void) {
  __asm__ volatile(
      "mrs r0, msp\n"
      "mrs r1, ipsr\n"
      "ldr r2, =__stack_top\n"
      "mov sp, r2\n"
      "bl report_fault\n");
}

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    __stack_top,
    (void *)Reset_Handler,
    (void *)Fault_Handler, /* NMI */
    (void *)Fault_Handler, /* HardFault */
    (void *)Fault_Handler, /* MemManage */
    (void *)Fault_Handler, /* BusFault */
    (void *)Fault_Handler, /* UsageFault */
    (void *)Fault_Handler, /* SecureFault on ARMv8-M */
    0, 0, 0,
    (void *)Fault_Handler, /* SVCall */
    (void *)Fault_Handler, /* DebugMonitor */
    0,
    (void *)Fault_Handler, /* PendSV */
    (void *)Fault_Handler, /* SysTick */
};

uint32_t board_stack_used(void) {
  const uint32_t *at = __stack_limit;
  while (at < __stack_top && *at == PAINT) ++at;
  return (uint32_t)((const char *)__stack_top - (const char *)at);
}

void Reset_Handler(void) {
  const uint32_t *from = __data_load;
  for (uint32_t *to = __data_start; to < __data_end;) *to++ = *from++;
  for (uint32_t *to = __bss_start; to < __bss_end;) *to++ = 0;
  /* What is above the frame of this function is in use. */
  uint32_t *const used = (uint32_t *)__builtin_frame_address(0) - 16;
  for (uint32_t *to = __stack_limit; to < used;) *to++ = PAINT;
#if !defined(__ARM_ARCH_6M__)
  REGISTER(0xe000ed24) |= 7u << 16; /* SHCSR: faults of their own instead of HardFault */
#endif
#if defined(__ARM_ARCH_8M_MAIN__) || defined(__ARM_ARCH_8_1M_MAIN__) /* GCC 12 says 8M */
  REGISTER(0xe000ed88) |= 15u << 20; /* CPACR: CP10 and CP11 */
  __asm__ volatile("dsb\nisb");
#endif
  host_exit(main());
}
