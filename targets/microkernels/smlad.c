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

#if !defined(IBERT_PLAIN_C) && defined(__GNUC__) && defined(__ARM_FEATURE_SIMD32) && \
    !defined(__ARM_BIG_ENDIAN)

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
        ".rept 8\n\t" QUAD ".endr\n\t"
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

/* Four words of half bytes give the lower halves at r2 and the upper ones at r1: a product with the
 * scale of a column, r5 or r6, is of four bytes at once, and so is the subtraction of eight scales. */
#define HALVES(shift, to)                                            \
    "and r3, r4, r9" shift "\n\t"                                    \
    "and r12, r4, r10" shift "\n\t"                                  \
    "mul r3, r5, r3\n\t"                                             \
    "mul r12, r6, r12\n\t"                                           \
    "usub8 r3, r3, r7\n\t"                                           \
    "usub8 r12, r12, r8\n\t"                                         \
    "sxtb16 r11, r3, ror #8\n\t"                                     \
    "sxtb16 r3, r3\n\t"                                              \
    "sxtb16 lr, r12, ror #8\n\t"                                     \
    "sxtb16 r12, r12\n\t"                                            \
    "stmia " to "!, {r3, r11, r12, lr}\n\t"
#define QUADS "ldmia r0!, {r9, r10}\n\t" HALVES("", "r2") HALVES(", lsr #4", "r1")
#define EIGHT_TIMES(scale, to)                                       \
    "add " scale ", " scale ", #1\n\t"                               \
    "lsl " to ", " scale ", #3\n\t"                                  \
    "orr " to ", " to ", " to ", lsl #8\n\t"                         \
    "orr " to ", " to ", " to ", lsl #16\n\t"
#define WIDEN_GROUP                                                  \
    EIGHT_TIMES("r5", "r7") EIGHT_TIMES("r6", "r8")                  \
    "mov r2, r1\n\t"                                                 \
    "add r1, r1, #64\n\t"                                            \
    QUADS QUADS QUADS QUADS                                          \
    "ldr r5, [sp, #4]\n\t"                                           \
    "subs r5, r5, #1\n\t"                                            \
    "str r5, [sp, #4]\n\t"

/* Widen half bytes of two columns (ibert_tvm/relay_passes/spec/nibbles.py), groups of 32 entries of
 * each; two groups have their scales in one byte. At 0 on the stack lies the address of the scales,
 * at 4 how many groups are left.
 *   halves  uint8 [groups][4][2][4]    scales  uint8 [(groups + 1) / 2][2]
 *   target  int16 [groups][2][4][2][h][e], as b above */
NAKED void ibert_mk_nibbles(UNUSED const uint8_t *halves, UNUSED const uint8_t *scales,
                            UNUSED int16_t *target, UNUSED int32_t groups)
{
    __asm__ volatile(
        ".syntax unified\n\t"
        "push {r1, r3, r4, r5, r6, r7, r8, r9, r10, r11, lr}\n\t"
        "mov r4, #15\n\t"
        "orr r4, r4, r4, lsl #8\n\t"
        "orr r4, r4, r4, lsl #16\n\t"
        "mov r1, r2\n"
        "1:\n\t"
        "ldr r7, [sp]\n\t"
        "ldrb r5, [r7]\n\t"
        "ldrb r6, [r7, #1]\n\t"
        "and r5, r5, #15\n\t"
        "and r6, r6, #15\n\t"
        WIDEN_GROUP
        "beq 2f\n\t"
        "ldr r7, [sp]\n\t"
        "ldrb r5, [r7], #1\n\t"
        "ldrb r6, [r7], #1\n\t"
        "str r7, [sp]\n\t"
        "lsr r5, r5, #4\n\t"
        "lsr r6, r6, #4\n\t"
        WIDEN_GROUP
        "bne 1b\n"
        "2:\n\t"
        "add sp, sp, #8\n\t"
        "pop {r4-r11, pc}\n\t");
}

#else

#if defined(__ARM_FEATURE_SIMD32)

#include <arm_acle.h>

static int16x2_t pair(const int16_t *x)
{
    return (int16x2_t)((uint32_t)(uint16_t)x[0] | (uint32_t)(uint16_t)x[1] << 16);
}

static uint32_t products(const int16_t *x, const int16_t *y, uint32_t sum)
{
    return (uint32_t)__smlad(pair(x), pair(y), (int32_t)sum);
}

#else

static uint32_t products(const int16_t *x, const int16_t *y, uint32_t sum)
{
    return sum + (uint32_t)x[0] * (uint32_t)y[0] + (uint32_t)x[1] * (uint32_t)y[1];
}

#endif

void ibert_mk_smlad_2x2(const int16_t *a, const int16_t *b, int32_t *c, int32_t depth)
{
    uint32_t c00 = (uint32_t)c[0], c01 = (uint32_t)c[1], c10 = (uint32_t)c[2], c11 = (uint32_t)c[3];
    for (const int16_t *end = a + depth * 2; a != end; a += 8, b += 8) {
        c00 = products(a + 2, b + 2, products(a, b, c00));
        c01 = products(a + 6, b + 2, products(a + 4, b, c01));
        c10 = products(a + 2, b + 6, products(a, b + 4, c10));
        c11 = products(a + 6, b + 6, products(a + 4, b + 4, c11));
    }
    c[0] = (int32_t)c00;
    c[1] = (int32_t)c01;
    c[2] = (int32_t)c10;
    c[3] = (int32_t)c11;
}

void ibert_mk_sxtb16(const int8_t *source, int16_t *target, int32_t words)
{
    for (const int8_t *end = source + words * 4; source != end; source += 4, target += 4) {
        target[0] = source[0];
        target[1] = source[2];
        target[2] = source[1];
        target[3] = source[3];
    }
}

void ibert_mk_nibbles(const uint8_t *halves, const uint8_t *scales, int16_t *target, int32_t groups)
{
    for (int32_t group = 0; group < groups; ++group) {
        for (int32_t entry = 0; entry < 64; ++entry) {
            /* As halves have them: upper halves, a quad of the depth, the column, the place in it. */
            const int32_t upper = entry / 32, column = entry / 4 % 2, place = entry % 4;
            const int32_t scale = scales[group / 2 * 2 + column] >> group % 2 * 4 & 15;
            const int32_t half = halves[group * 32 + entry % 32] >> upper * 4 & 15;
            target[group * 64 + entry - place + place % 2 * 2 + place / 2] =
                (int16_t)((half - 8) * (scale + 1));
        }
    }
}

#endif
