/* What compilers call on their own: copying and filling memory.
 *
 * Every symbol is weak, so that those of a C library, where one is linked, take their place. The
 * __aeabi_ names are those of the ARM run-time ABI (IHI 0043); their arguments differ in order. */
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) && !defined(__clang__)
/* Or GCC would see that the loop below is memcpy, and call it. */
#pragma GCC optimize("no-tree-loop-distribute-patterns")
#endif

#define WEAK __attribute__((weak))
#if defined(__clang__)
#define PLAIN __attribute__((no_builtin))
#else
#define PLAIN
#endif

typedef uint32_t __attribute__((may_alias)) word;

static int words(const void *a, const void *b) { return (((uintptr_t)a | (uintptr_t)b) & 3u) == 0; }

WEAK PLAIN void *memcpy(void *restrict to, const void *restrict from, size_t count) {
  unsigned char *out = to;
  const unsigned char *in = from;
  if (words(to, from)) {
    for (; count >= 16; count -= 16, out += 16, in += 16) {
      const word a = ((const word *)in)[0], b = ((const word *)in)[1];
      const word c = ((const word *)in)[2], d = ((const word *)in)[3];
      ((word *)out)[0] = a, ((word *)out)[1] = b, ((word *)out)[2] = c, ((word *)out)[3] = d;
    }
    for (; count >= 4; count -= 4, out += 4, in += 4) *(word *)out = *(const word *)in;
  }
  while (count--) *out++ = *in++;
  return to;
}

WEAK PLAIN void *memmove(void *to, const void *from, size_t count) {
  unsigned char *out = to;
  const unsigned char *in = from;
  if ((uintptr_t)to - (uintptr_t)from >= count) return memcpy(to, from, count);
  while (count--) out[count] = in[count];
  return to;
}

WEAK PLAIN void *memset(void *to, int value, size_t count) {
  unsigned char *out = to;
  const word byte = (unsigned char)value;
  const word four = byte | byte << 8 | byte << 16 | byte << 24;
  for (; count > 0 && !words(out, out); --count) *out++ = (unsigned char)byte;
  for (; count >= 16; count -= 16, out += 16) {
    ((word *)out)[0] = four, ((word *)out)[1] = four;
    ((word *)out)[2] = four, ((word *)out)[3] = four;
  }
  for (; count >= 4; count -= 4, out += 4) *(word *)out = four;
  while (count--) *out++ = (unsigned char)byte;
  return to;
}

WEAK void __aeabi_memcpy(void *to, const void *from, size_t count) { (void)memcpy(to, from, count); }
WEAK void __aeabi_memcpy4(void *to, const void *from, size_t count) { (void)memcpy(to, from, count); }
WEAK void __aeabi_memcpy8(void *to, const void *from, size_t count) { (void)memcpy(to, from, count); }
WEAK void __aeabi_memmove(void *to, const void *from, size_t count) { (void)memmove(to, from, count); }
WEAK void __aeabi_memmove4(void *to, const void *from, size_t count) { (void)memmove(to, from, count); }
WEAK void __aeabi_memmove8(void *to, const void *from, size_t count) { (void)memmove(to, from, count); }
WEAK void __aeabi_memset(void *to, size_t count, int value) { (void)memset(to, value, count); }
WEAK void __aeabi_memset4(void *to, size_t count, int value) { (void)memset(to, value, count); }
WEAK void __aeabi_memset8(void *to, size_t count, int value) { (void)memset(to, value, count); }
WEAK void __aeabi_memclr(void *to, size_t count) { (void)memset(to, 0, count); }
WEAK void __aeabi_memclr4(void *to, size_t count) { (void)memset(to, 0, count); }
WEAK void __aeabi_memclr8(void *to, size_t count) { (void)memset(to, 0, count); }
