/* Matrix products with MLA: ARM processors with Thumb-2 and without SIMD (Cortex-M3).
 *
 * Activations are widened to words, so that one LDRD or LDM loads those of several rows; weights
 * stay bytes. Four rows by two columns leave two registers for activations and two for weights:
 * twelve instructions for eight products. Smaller tiles serve what four rows do not divide.
 *
 * Layouts, innermost last:
 *   a  int32 [depth][rows]      b  int8 [depth][2]      c  int32 [2][rows]
 * What a kernel computes: c[n][m] += sum over k of a[k][m] b[k][n], modulo 2^32. Words are aligned.
 */

#include <stdint.h>

#if !defined(IBERT_PLAIN_C) && defined(__GNUC__) && defined(__thumb2__)

#define NAKED __attribute__((naked))
#define UNUSED __attribute__((unused))

/* One entry of the depth; `i` counts bytes of weights, `w` bytes of activations. */
#define STEP_4X2(i, i1, w, w8)                                                   \
    "ldrsb r12, [r1, #" i "]\n\tldrsb lr, [r1, #" i1 "]\n\t"                     \
    "ldrd r10, r11, [r0, #" w "]\n\t"                                            \
    "mla r2, r10, r12, r2\n\tmla r3, r11, r12, r3\n\t"                           \
    "mla r6, r10, lr, r6\n\tmla r7, r11, lr, r7\n\t"                             \
    "ldrd r10, r11, [r0, #" w8 "]\n\t"                                           \
    "mla r4, r10, r12, r4\n\tmla r5, r11, r12, r5\n\t"                           \
    "mla r8, r10, lr, r8\n\tmla r9, r11, lr, r9\n\t"

#define GROUP_4X2                                                                \
    STEP_4X2("0", "1", "0", "8") STEP_4X2("2", "3", "16", "24")                  \
    STEP_4X2("4", "5", "32", "40") STEP_4X2("6", "7", "48", "56")                \
    STEP_4X2("8", "9", "64", "72") STEP_4X2("10", "11", "80", "88")              \
    STEP_4X2("12", "13", "96", "104") STEP_4X2("14", "15", "112", "120")         \
    STEP_4X2("16", "17", "128", "136") STEP_4X2("18", "19", "144", "152")        \
    STEP_4X2("20", "21", "160", "168") STEP_4X2("22", "23", "176", "184")        \
    STEP_4X2("24", "25", "192", "200") STEP_4X2("26", "27", "208", "216")        \
    STEP_4X2("28", "29", "224", "232") STEP_4X2("30", "31", "240", "248")        \
    "adds r0, r0, #256\n\tadds r1, r1, #32\n\t"

#define ONE_4X2 STEP_4X2("0", "1", "0", "8") "adds r0, r0, #16\n\tadds r1, r1, #2\n\t"

#define STEP_3X2(i, i1)                                                          \
    "ldrsb r11, [r1, #" i "]\n\tldrsb r12, [r1, #" i1 "]\n\t"                    \
    "ldmia r0!, {r8, r9, r10}\n\t"                                               \
    "mla r2, r8, r11, r2\n\tmla r3, r9, r11, r3\n\tmla r4, r10, r11, r4\n\t"     \
    "mla r5, r8, r12, r5\n\tmla r6, r9, r12, r6\n\tmla r7, r10, r12, r7\n\t"

#define STEP_2X2(i, i1)                                                          \
    "ldrsb r11, [r1, #" i "]\n\tldrsb r12, [r1, #" i1 "]\n\t"                    \
    "ldmia r0!, {r8, r9}\n\t"                                                    \
    "mla r2, r8, r11, r2\n\tmla r3, r9, r11, r3\n\t"                             \
    "mla r4, r8, r12, r4\n\tmla r5, r9, r12, r5\n\t"

#define STEP_1X2(i, i1)                                                          \
    "ldrsb r11, [r1, #" i "]\n\tldrsb r12, [r1, #" i1 "]\n\t"                    \
    "ldr r8, [r0], #4\n\t"                                                       \
    "mla r2, r8, r11, r2\n\tmla r3, r8, r12, r3\n\t"

#define GROUP(STEP)                                                              \
    STEP("0", "1") STEP("2", "3") STEP("4", "5") STEP("6", "7")                  \
    STEP("8", "9") STEP("10", "11") STEP("12", "13") STEP("14", "15")            \
    STEP("16", "17") STEP("18", "19") STEP("20", "21") STEP("22", "23")          \
    STEP("24", "25") STEP("26", "27") STEP("28", "29") STEP("30", "31")          \
    "adds r1, r1, #32\n\t"
#define ONE(STEP) STEP("0", "1") "adds r1, r1, #2\n\t"

/* Sixteen steps at a time while there are sixteen, then one at a time. The ends of the weights lie
 * on the stack: at 0 that of the groups of sixteen, at 8 that of all; at 4 the accumulators'. */
#define PRODUCT(load, group, one, store)               \
    __asm__ volatile(                                  \
        ".syntax unified\n\t"                          \
        "push {r1-r11, lr}\n\t"                        \
        "bic r12, r3, #15\n\t"                         \
        "add r12, r1, r12, lsl #1\n\t"                 \
        "str r12, [sp]\n\t"                            \
        "add r3, r1, r3, lsl #1\n\t"                   \
        "str r3, [sp, #8]\n\t"                         \
        load                                           \
        "cmp r1, r12\n\t"                              \
        "beq 2f\n"                                     \
        "1:\n\t"                                       \
        group                                          \
        "ldr r10, [sp]\n\t"                            \
        "cmp r1, r10\n\t"                              \
        "bne.w 1b\n"                                   \
        "2:\n\t"                                       \
        "ldr r10, [sp, #8]\n\t"                        \
        "cmp r1, r10\n\t"                              \
        "beq 4f\n"                                     \
        "3:\n\t"                                       \
        one                                            \
        "ldr r10, [sp, #8]\n\t"                        \
        "cmp r1, r10\n\t"                              \
        "bne 3b\n"                                     \
        "4:\n\t"                                       \
        "ldr r0, [sp, #4]\n\t"                         \
        store                                          \
        "add sp, sp, #12\n\t"                          \
        "pop {r4-r11, pc}\n\t")

NAKED void ibert_mk_mla_4x2(UNUSED const int32_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                            UNUSED int32_t depth)
{
    PRODUCT("ldm r2, {r2-r9}\n\t", GROUP_4X2, ONE_4X2, "stm r0, {r2-r9}\n\t");
}

NAKED void ibert_mk_mla_3x2(UNUSED const int32_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                            UNUSED int32_t depth)
{
    PRODUCT("ldm r2, {r2-r7}\n\t", GROUP(STEP_3X2), ONE(STEP_3X2), "stm r0, {r2-r7}\n\t");
}

NAKED void ibert_mk_mla_2x2(UNUSED const int32_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                            UNUSED int32_t depth)
{
    PRODUCT("ldm r2, {r2-r5}\n\t", GROUP(STEP_2X2), ONE(STEP_2X2), "stm r0, {r2-r5}\n\t");
}

NAKED void ibert_mk_mla_1x2(UNUSED const int32_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                            UNUSED int32_t depth)
{
    PRODUCT("ldm r2, {r2-r3}\n\t", GROUP(STEP_1X2), ONE(STEP_1X2), "stm r0, {r2-r3}\n\t");
}

#else

static void product(const int32_t *a, const int8_t *b, int32_t *c, int32_t depth, int32_t rows)
{
    for (int32_t n = 0; n < 2; ++n) {
        for (int32_t m = 0; m < rows; ++m) {
            uint32_t sum = (uint32_t)c[n * rows + m];
            for (int32_t k = 0; k < depth; ++k) {
                sum += (uint32_t)a[k * rows + m] * (uint32_t)(int32_t)b[k * 2 + n];
            }
            c[n * rows + m] = (int32_t)sum;
        }
    }
}

void ibert_mk_mla_4x2(const int32_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 4);
}

void ibert_mk_mla_3x2(const int32_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 3);
}

void ibert_mk_mla_2x2(const int32_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 2);
}

void ibert_mk_mla_1x2(const int32_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 1);
}

#endif
