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
