/* Runs single kernels as it is told: calls come in on standard input, results go to standard output.
 *
 * A call is the number of the kernel, the number of its arguments, and every argument as its size in
 * bytes and its bytes; numbers have 32 bits. The answer is what the kernel returned and the bytes of
 * all arguments. The list KERNELS(x) names the kernels. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernel_names.h"

enum { MOST_ARGUMENTS = 16, GUARD = 64 };

/* Every kernel takes a number of pointers; more than it takes do no harm in the ABIs of ARM and RISC-V. */
typedef int32_t (*kernel_t)(void *, void *, void *, void *, void *, void *, void *, void *, void *,
                            void *, void *, void *, void *, void *, void *, void *);

#define DECLARE(name) extern int32_t name();
#define ENTRY(name) (kernel_t)name,
KERNELS(DECLARE)
static const kernel_t kernels[] = {KERNELS(ENTRY)};

static int32_t read_number(void) {
  int32_t number;
  if (fread(&number, sizeof number, 1, stdin) != 1) exit(feof(stdin) ? 0 : 3);
  return number;
}

int main(void) {
  for (;;) {
    const int32_t kernel = read_number();
    const int32_t count = read_number();
    void *arguments[MOST_ARGUMENTS] = {0};
    int32_t sizes[MOST_ARGUMENTS];
    if (count > MOST_ARGUMENTS) return 4;
    for (int32_t i = 0; i < count; ++i) {
      sizes[i] = read_number();
      const size_t room = ((size_t)sizes[i] + 2 * GUARD - 1) / GUARD * GUARD;
      arguments[i] = aligned_alloc(GUARD, room);
      if (arguments[i] == NULL) return 5;
      if (fread(arguments[i], 1, (size_t)sizes[i], stdin) != (size_t)sizes[i]) return 6;
    }
    void **a = arguments;
    const int32_t status =
        kernels[kernel](a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11],
                        a[12], a[13], a[14], a[15]);
    fwrite(&status, sizeof status, 1, stdout);
    for (int32_t i = 0; i < count; ++i) {
      fwrite(arguments[i], 1, (size_t)sizes[i], stdout);
      free(arguments[i]);
    }
    fflush(stdout);
  }
}
