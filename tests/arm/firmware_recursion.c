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
