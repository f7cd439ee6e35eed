/* Calls one kernel on a microcontroller: arguments come from a file and go back to one.
 *
 * KERNEL is the function, ARGUMENTS(x) lists x(index, bytes) for every argument in order. */
#include "board.h"
#include "semihosting.h"

#include "kernel_arguments.h"

#define STORAGE(index, bytes) \
  __attribute__((aligned(64), section(".extra_bss"))) static unsigned char argument_##index[bytes];
ARGUMENTS(STORAGE)

#define TYPE(index, bytes) , void *
#define VALUE(index, bytes) , argument_##index
/* The leading comma of the lists above is eaten by an argument of no use. */
#define REST_(first, ...) __VA_ARGS__
#define REST(...) REST_(__VA_ARGS__)
extern int32_t KERNEL(REST(0 ARGUMENTS(TYPE)));

__attribute__((noinline, used)) void ibert_region_begin(void) { __asm__ volatile(""); }
__attribute__((noinline, used)) void ibert_region_end(void) { __asm__ volatile(""); }

int main(void) {
  const int32_t inputs = host_open("inputs.bin", "r");
#define READ(index, bytes) \
  if (host_read(inputs, argument_##index, bytes) != 0) return 71;
  ARGUMENTS(READ)
  host_close(inputs);

  ibert_region_begin();
  const int32_t status = KERNEL(REST(0 ARGUMENTS(VALUE)));
  ibert_region_end();

  const uint32_t result[2] = {(uint32_t)status, board_stack_used()};
  const int32_t outputs = host_open("outputs.bin", "w");
  if (host_write(outputs, result, sizeof result) != 0) return 72;
#define WRITE(index, bytes) \
  if (host_write(outputs, argument_##index, bytes) != 0) return 72;
  ARGUMENTS(WRITE)
  host_close(outputs);
  return 0;
}
