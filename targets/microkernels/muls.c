/* Matrix products with MULS: ARM processors with 16-bit Thumb instructions (Cortex-M0, M0+, M1).
 *
 * A multiplication overwrites one factor, and works on the registers r0 to r7 only; an addition
 * reaches the others. So accumulators lie in r8 to r12, and activations are widened to words: one
 * LDM loads those of all rows, each product overwrites its activation, and no register is copied.
 * Per column and entry of the depth: two instructions for the weight, one LDM, two per row.
 *
 * Layouts, innermost last:
 *   a  int32 [depth][rows]      b  int8 [depth]      c  int32 [rows]
 * What a kernel computes: c[m] += sum over k of a[k][m] b[k], modulo 2^32. Words are aligned.
 */

#include <stdint.h>

#if !defined(IBERT_PLAIN_C) && defined(__GNUC__) && defined(__thumb__)

#define NAKED __attribute__((naked))
#define UNUSED __attribute__((unused))

#define MAC_1 "muls r3, r2, r3\n\tadd r8, r3\n\t"
#define MAC_2 MAC_1 "muls r4, r2, r4\n\tadd r9, r4\n\t"
#define MAC_3 MAC_2 "muls r5, r2, r5\n\tadd r10, r5\n\t"
#define MAC_4 MAC_3 "muls r6, r2, r6\n\tadd r11, r6\n\t"
#define MAC_5 MAC_4 "muls r7, r2, r7\n\tadd r12, r7\n\t"

#define STEP(i, list, mac) \
    "ldrb r2, [r1, #" i "]\n\tsxtb r2, r2\n\tldmia r0!, {" list "}\n\t" mac
#define FOUR(i0, i1, i2, i3, list, mac) \
    STEP(i0, list, mac) STEP(i1, list, mac) STEP(i2, list, mac) STEP(i3, list, mac)
#define GROUP(list, mac)                                                              \
    FOUR("0", "1", "2", "3", list, mac) FOUR("4", "5", "6", "7", list, mac)           \
    FOUR("8", "9", "10", "11", list, mac) FOUR("12", "13", "14", "15", list, mac)     \
    FOUR("16", "17", "18", "19", list, mac) FOUR("20", "21", "22", "23", list, mac)   \
    FOUR("24", "25", "26", "27", list, mac) FOUR("28", "29", "30", "31", list, mac)

#define TO_1 "mov r8, r3\n\t"
#define TO_2 TO_1 "mov r9, r4\n\t"
#define TO_3 TO_2 "mov r10, r5\n\t"
#define TO_4 TO_3 "mov r11, r6\n\t"
#define TO_5 TO_4 "mov r12, r7\n\t"
#define FROM_1 "mov r3, r8\n\t"
#define FROM_2 FROM_1 "mov r4, r9\n\t"
#define FROM_3 FROM_2 "mov r5, r10\n\t"
#define FROM_4 FROM_3 "mov r6, r11\n\t"
#define FROM_5 FROM_4 "mov r7, r12\n\t"

/* Thirty-two steps at a time while there are thirty-two, then one at a time; lr holds the end of
 * the weights, first that of whole groups. A conditional branch reaches 256 bytes only. */
#define PRODUCT(list, mac, to, from)                   \
    __asm__ volatile(                                  \
        ".syntax unified\n\t"                          \
        "push {r4-r7, lr}\n\t"                         \
        "mov r4, r8\n\t"                               \
        "mov r5, r9\n\t"                               \
        "mov r6, r10\n\t"                              \
        "mov r7, r11\n\t"                              \
        "push {r4-r7}\n\t"                             \
        "lsrs r4, r3, #5\n\t"                          \
        "lsls r4, r4, #5\n\t"                          \
        "adds r4, r1, r4\n\t"                          \
        "mov lr, r4\n\t"                               \
        "adds r3, r1, r3\n\t"                          \
        "push {r2, r3}\n\t"                            \
        "ldmia r2!, {" list "}\n\t"                    \
        to                                             \
        "cmp r1, lr\n\t"                               \
        "bne 1f\n\t"                                   \
        "b 2f\n"                                       \
        "1:\n\t"                                       \
        GROUP(list, mac)                               \
        "adds r1, r1, #32\n\t"                         \
        "cmp r1, lr\n\t"                               \
        "beq 2f\n\t"                                   \
        "b 1b\n"                                       \
        "2:\n\t"                                       \
        "ldr r3, [sp, #4]\n\t"                         \
        "mov lr, r3\n"                                 \
        "3:\n\t"                                       \
        "cmp r1, lr\n\t"                               \
        "beq 4f\n\t"                                   \
        STEP("0", list, mac)                           \
        "adds r1, r1, #1\n\t"                          \
        "b 3b\n"                                       \
        "4:\n\t"                                       \
        from                                           \
        "ldr r2, [sp]\n\t"                             \
        "add sp, sp, #8\n\t"                           \
        "stmia r2!, {" list "}\n\t"                    \
        "pop {r4-r7}\n\t"                              \
        "mov r8, r4\n\t"                               \
        "mov r9, r5\n\t"                               \
        "mov r10, r6\n\t"                              \
        "mov r11, r7\n\t"                              \
        "pop {r4-r7, pc}\n\t")

NAKED void ibert_mk_muls_1x1(UNUSED const int32_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                             UNUSED int32_t depth)
{
    PRODUCT("r3", MAC_1, TO_1, FROM_1);
}

NAKED void ibert_mk_muls_2x1(UNUSED const int32_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                             UNUSED int32_t depth)
{
    PRODUCT("r3, r4", MAC_2, TO_2, FROM_2);
}

NAKED void ibert_mk_muls_3x1(UNUSED const int32_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                             UNUSED int32_t depth)
{
    PRODUCT("r3, r4, r5", MAC_3, TO_3, FROM_3);
}

NAKED void ibert_mk_muls_4x1(UNUSED const int32_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                             UNUSED int32_t depth)
{
    PRODUCT("r3, r4, r5, r6", MAC_4, TO_4, FROM_4);
}

NAKED void ibert_mk_muls_5x1(UNUSED const int32_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                             UNUSED int32_t depth)
{
    PRODUCT("r3, r4, r5, r6, r7", MAC_5, TO_5, FROM_5);
}

#else

static void product(const int32_t *a, const int8_t *b, int32_t *c, int32_t depth, int32_t rows)
{
    for (int32_t m = 0; m < rows; ++m) {
        uint32_t sum = (uint32_t)c[m];
        for (int32_t k = 0; k < depth; ++k) {
            sum += (uint32_t)a[k * rows + m] * (uint32_t)(int32_t)b[k];
        }
        c[m] = (int32_t)sum;
    }
}

void ibert_mk_muls_1x1(const int32_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 1);
}

void ibert_mk_muls_2x1(const int32_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 2);
}

void ibert_mk_muls_3x1(const int32_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 3);
}

void ibert_mk_muls_4x1(const int32_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 4);
}

void ibert_mk_muls_5x1(const int32_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 5);
}

#endif
