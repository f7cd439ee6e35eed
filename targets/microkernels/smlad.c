/* Matrix products with SMLAD: ARM processors with SIMD in general registers (Cortex-M4, M7, ARM11).
 *
 * SXTB16 widens the bytes 0 and 2 of a word, or 1 and 3, to two halves. Activations and weights are
 * both kept in that form, four entries of the depth as two words, so that one SMLAD adds two
 * products to an accumulator and nothing is unpacked in the inner loop.
 *
 * All registers are in use (four accumulators, two pointers, eight operands), so that each load is
 * one LDM of four words: ten instructions for sixteen products. Hence assembly: a compiler neither
 * finds these loads nor keeps the accumulators in registers.
 *
 * Layouts, innermost last, with k = 4 q + 2 e + h (0 <= e, h < 2):
 *   a  int16 [depth / 4][2][h][e]      b  int16 [depth / 4][2][h][e]      c  int32 [2][2]
 * What a kernel computes: c[n][m] += sum over k of a[m][k] b[n][k], modulo 2^32. Word-aligned.
 */

#include <stdint.h>

#if !defined(IBERT_PLAIN_C) && defined(__GNUC__) && defined(__ARM_FEATURE_SIMD32)

#define NAKED __attribute__((naked))
#define UNUSED __attribute__((unused))

/* Four entries of the depth: rows in r6..r9, columns in r10..lr, accumulators in r2..r5. */
#define QUAD                                 \
    "ldmia r0!, {r6, r7, r8, r9}\n\t"        \
    "ldmia r1!, {r10, r11, r12, lr}\n\t"     \
    "smlad r2, r6, r10, r2\n\t"              \
    "smlad r3, r8, r10, r3\n\t"              \
    "smlad r4, r6, r12, r4\n\t"              \
    "smlad r5, r8, r12, r5\n\t"              \
    "smlad r2, r7, r11, r2\n\t"              \
    "smlad r3, r9, r11, r3\n\t"              \
    "smlad r4, r7, lr, r4\n\t"               \
    "smlad r5, r9, lr, r5\n\t"

/* Eight quads at a time while there are eight, then one at a time. No register is left for the ends
 * of the rows: they lie on the stack, at 0 that of the groups of eight, at 8 that of all; at 4 the
 * address of the accumulators. */
NAKED void ibert_mk_smlad_2x2(UNUSED const int16_t *a, UNUSED const int16_t *b, UNUSED int32_t *c,
                              UNUSED int32_t depth)
{
    __asm__ volatile(
        ".syntax unified\n\t"
        "push {r1-r11, lr}\n\t"
        "bic r12, r3, #31\n\t"
        "add r12, r0, r12, lsl #2\n\t"
        "str r12, [sp]\n\t"
        "add r3, r0, r3, lsl #2\n\t"
        "str r3, [sp, #8]\n\t"
        "ldm r2, {r2, r3, r4, r5}\n\t"
        "cmp r0, r12\n\t"
        "beq 2f\n"
        "1:\n\t"
        QUAD QUAD QUAD QUAD QUAD QUAD QUAD QUAD
        "ldr r6, [sp]\n\t"
        "cmp r0, r6\n\t"
        "bne 1b\n"
        "2:\n\t"
        "ldr r6, [sp, #8]\n\t"
        "cmp r0, r6\n\t"
        "beq 4f\n"
        "3:\n\t"
        QUAD
        "ldr r6, [sp, #8]\n\t"
        "cmp r0, r6\n\t"
        "bne 3b\n"
        "4:\n\t"
        "ldr r0, [sp, #4]\n\t"
        "stm r0, {r2, r3, r4, r5}\n\t"
        "add sp, sp, #12\n\t"
        "pop {r4-r11, pc}\n\t");
}

/* Sixteen bytes. */
#define WIDEN                                                        \
    "ldmia r0!, {r4, r6, r8, r10}\n\t"                               \
    "sxtb16 r5, r4, ror #8\n\t"                                      \
    "sxtb16 r4, r4\n\t"                                              \
    "sxtb16 r7, r6, ror #8\n\t"                                      \
    "sxtb16 r6, r6\n\t"                                              \
    "sxtb16 r9, r8, ror #8\n\t"                                      \
    "sxtb16 r8, r8\n\t"                                              \
    "sxtb16 r11, r10, ror #8\n\t"                                    \
    "sxtb16 r10, r10\n\t"                                            \
    "stmia r1!, {r4, r5, r6, r7, r8, r9, r10, r11}\n\t"

/* Widen `words` words of four bytes each, in the order described above: eight at a time, then one. */
NAKED void ibert_mk_sxtb16(UNUSED const int8_t *source, UNUSED int16_t *target,
                           UNUSED int32_t words)
{
    __asm__ volatile(
        ".syntax unified\n\t"
        "push {r4-r11}\n\t"
        "subs r2, r2, #8\n\t"
        "blt 2f\n"
        "1:\n\t"
        WIDEN WIDEN
        "subs r2, r2, #8\n\t"
        "bge 1b\n"
        "2:\n\t"
        "adds r2, r2, #8\n\t"
        "beq 4f\n"
        "3:\n\t"
        "ldr r4, [r0], #4\n\t"
        "sxtb16 r5, r4, ror #8\n\t"
        "sxtb16 r4, r4\n\t"
        "stmia r1!, {r4, r5}\n\t"
        "subs r2, r2, #1\n\t"
        "bne 3b\n"
        "4:\n\t"
        "pop {r4-r11}\n\t"
        "bx lr\n\t");
}

#else

void ibert_mk_smlad_2x2(const int16_t *a, const int16_t *b, int32_t *c, int32_t depth)
{
    for (int32_t n = 0; n < 2; ++n) {
        for (int32_t m = 0; m < 2; ++m) {
            uint32_t sum = (uint32_t)c[n * 2 + m];
            for (int32_t quad = 0; quad < depth / 4; ++quad) {
                for (int32_t i = 0; i < 4; ++i) {
                    sum += (uint32_t)((int32_t)a[(quad * 2 + m) * 4 + i] *
                                      b[(quad * 2 + n) * 4 + i]);
                }
            }
            c[n * 2 + m] = (int32_t)sum;
        }
    }
}

void ibert_mk_sxtb16(const int8_t *source, int16_t *target, int32_t words)
{
    for (int32_t word = 0; word < words; ++word) {
        for (int32_t half = 0; half < 2; ++half) {
            for (int32_t entry = 0; entry < 2; ++entry) {
                target[word * 4 + half * 2 + entry] = source[word * 4 + entry * 2 + half];
            }
        }
    }
}

#endif
