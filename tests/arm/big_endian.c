/* A program for 32-bit ARM under Linux in big-endian order, without a C library: it reads all inputs
 * from its standard input and writes the outputs of a model. */
#include "ibert_model.h"

static IBERT_ALIGNED uint8_t arena[IBERT_ARENA_BYTES];
static uint64_t in[IBERT_INPUT_BYTES / 8], out[IBERT_OUTPUT_BYTES / 8];
static ibert_context context;

static long call(long number, long first, const void *second, unsigned long third) {
  register long r7 __asm__("r7") = number;
  register long r0 __asm__("r0") = first;
  register const void *r1 __asm__("r1") = second;
  register unsigned long r2 __asm__("r2") = third;
  __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2) : "memory");
  return r0;
}

/* Divisions of 64 bits, which the compiler's library has in little-endian order only. */
uint64_t ibert_test_divide(uint64_t value, uint64_t divisor, uint64_t *remainder);
uint64_t ibert_test_divide(uint64_t value, uint64_t divisor, uint64_t *remainder) {
  uint64_t quotient = 0, rest = 0;
  for (int bit = 63; bit >= 0; --bit) {
    rest = rest << 1 | (value >> bit & 1);
    quotient <<= 1;
    if (rest >= divisor) rest -= divisor, quotient |= 1;
  }
  *remainder = rest;
  return quotient;
}

__attribute__((naked)) void __aeabi_uldivmod(void) {
  __asm__ volatile(
      "push {r4, lr}\n"
      "sub sp, #16\n"
      "add r4, sp, #8\n"
      "str r4, [sp]\n"
      "bl ibert_test_divide\n"
      "ldrd r2, r3, [sp, #8]\n"
      "add sp, #16\n"
      "pop {r4, pc}\n");
}

uint64_t ibert_test_signed(int64_t value, int64_t divisor, int64_t *remainder);
uint64_t ibert_test_signed(int64_t value, int64_t divisor, int64_t *remainder) {
  const uint64_t magnitude = value < 0 ? -(uint64_t)value : (uint64_t)value;
  const uint64_t by = divisor < 0 ? -(uint64_t)divisor : (uint64_t)divisor;
  uint64_t rest, quotient = ibert_test_divide(magnitude, by, &rest);
  *remainder = value < 0 ? -(int64_t)rest : (int64_t)rest;
  return (value < 0) != (divisor < 0) ? -quotient : quotient;
}

__attribute__((naked)) void __aeabi_ldivmod(void) {
  __asm__ volatile(
      "push {r4, lr}\n"
      "sub sp, #16\n"
      "add r4, sp, #8\n"
      "str r4, [sp]\n"
      "bl ibert_test_signed\n"
      "ldrd r2, r3, [sp, #8]\n"
      "add sp, #16\n"
      "pop {r4, pc}\n");
}

void _start(void) {
  const void *inputs[IBERT_NUM_INPUTS];
  void *outputs[1] = {out};
  size_t input_bytes[IBERT_NUM_INPUTS], output_bytes[1] = {sizeof out};
  int32_t status = 99;
  if (call(3, 0, in, sizeof in) == (long)sizeof in) {
    for (int i = 0; i < IBERT_NUM_INPUTS; ++i) {
      inputs[i] = (int32_t *)in + i * 32;
      input_bytes[i] = 32 * sizeof(int32_t);
    }
    status = ibert_init(&context, IBERT_ABI_VERSION, IBERT_FINGERPRINT, arena, sizeof arena);
    if (status == 0) status = ibert_run(&context, 1, 32, inputs, input_bytes, outputs, output_bytes);
    call(4, 1, out, IBERT_OUTPUT_BYTES);
  }
  call(1, status, 0, 0);
}
