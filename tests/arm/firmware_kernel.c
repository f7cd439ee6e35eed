#include <stdint.h>
static int32_t counter = 41;  /* initialised data and cleared data are in place */
static int32_t zero;
int32_t add(const int8_t *a, const int16_t *b, int64_t *sum, uint8_t *workspace) {
  for (int i = 0; i < 100; ++i) workspace[i] = (uint8_t)i, sum[i] = a[i] + (int64_t)b[i] * 100000;
  return ++counter + zero;
}
