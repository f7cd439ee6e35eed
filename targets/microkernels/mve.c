/* The 8-bit matrix product of Cortex-M processors with integer vectors (MVE).
 *
 * VMLADAVA.S8 adds sixteen products to a general register, one with an even number. A tile of four
 * rows and two columns has eight of them, all that there are: the loop is counted in an odd one,
 * and what else must be kept lies on the stack. Loads and products alternate, so that the vector
 * units overlap them. VMLADAV.S8, for the first products of a sum, adds to nothing. Every product of
 * int8 is exact, and sums are int32.
 *
 * No floating-point register is used but as integer vector q0 to q3, which callers do not keep. */

#include <stdint.h>

#if defined(__GNUC__) && defined(__ARM_FEATURE_MVE) && !defined(IBERT_PLAIN_C)

/* Sixteen channels of four rows (r1, r3, r5, r7) and of two columns (r9), by an instruction. */
#define CHANNELS_BY(PRODUCT)                                                                      \
    "vldrb.u8 q0, [r9], #16\n"                                                                    \
    "vldrb.u8 q2, [r1], #16\n"                                                                    \
    PRODUCT ".s8 r0, q2, q0\n"                                                                    \
    "vldrb.u8 q1, [r9], #48\n"                                                                    \
    PRODUCT ".s8 r2, q2, q1\n"                                                                    \
    "vldrb.u8 q3, [r3], #16\n"                                                                    \
    PRODUCT ".s8 r4, q3, q0\n"                                                                    \
    "vldrb.u8 q2, [r5], #16\n"                                                                    \
    PRODUCT ".s8 r6, q3, q1\n"                                                                    \
    PRODUCT ".s8 r8, q2, q0\n"                                                                    \
    "vldrb.u8 q3, [r7], #16\n"                                                                    \
    PRODUCT ".s8 r10, q2, q1\n"                                                                   \
    PRODUCT ".s8 r12, q3, q0\n"                                                                   \
    PRODUCT ".s8 lr, q3, q1\n"
#define FIRST_CHANNELS CHANNELS_BY("vmladav")
#define CHANNELS CHANNELS_BY("vmladava")
#define CHANNELS_48 CHANNELS CHANNELS CHANNELS
#define CHANNELS_64 CHANNELS_48 CHANNELS

#define UNUSED __attribute__((unused))

__attribute__((naked, noinline)) static void two_columns(UNUSED const int8_t *a,
                                                       UNUSED const int8_t *b, UNUSED int32_t *c,
                                                       UNUSED int32_t depth,
                                                       UNUSED int32_t columns,
                                                       UNUSED int32_t skip,
                                                       UNUSED int32_t stride,
                                                       UNUSED int32_t row, UNUSED int32_t adds) {
    __asm__ volatile(
        ".syntax unified\n"
        "push {r4-r11, lr}\n"
        "sub sp, #44\n"
        /* On the stack: from [sp] four rows of a, and twice the runs of 128 channels, with 1 added
         * if they are not all; from [sp, #20] the other channels (in sixteens, but for the first
         * products of a sum), adds, c, stride, end of c, skip; from [sp, #80] the last arguments. */
        "mov r9, r1\n"
        "mov r1, r0\n"
        "mov r0, r3\n"
        "ldrd r6, r8, [sp, #80]\n"
        "ldrd r4, r12, [sp, #88]\n"
        "ldr r10, [sp, #96]\n"
        "add r3, r1, r12\n"
        "add r5, r3, r12\n"
        "add r7, r5, r12\n"
        "lsr r11, r0, #7\n"
        "lsl r11, r11, #1\n"
        "ubfx r0, r0, #4, #3\n"
        "cmp r10, #0\n"
        "bne 1f\n"
        "cbz r0, 2f\n"
        "subs r0, r0, #1\n"
        "1:\n"
        "orr r11, r11, #1\n"
        "2:\n"
        "stm sp, {r1, r3, r5, r7, r11}\n"
        "add r6, r2, r6, lsl #2\n"
        "strd r0, r10, [sp, #20]\n"
        "strd r2, r4, [sp, #28]\n"
        "strd r6, r8, [sp, #36]\n"
        "3:\n" /* two columns of four */
        "ldm sp, {r1, r3, r5, r7, r11}\n"
        "lsrs r11, r11, #1\n"
        "bcs 7f\n" FIRST_CHANNELS "b 5f\n"
        "4:\n" CHANNELS "5:\n" CHANNELS_48 CHANNELS_64 "subs r11, r11, #1\n"
        "bne 4b\n"
        "6:\n"
        "ldrd r1, r3, [sp, #28]\n"
        "strd r0, r2, [r1], #16\n"
        "add r5, r1, r3\n"
        "strd r4, r6, [r5, #-16]\n"
        "add r5, r5, r3\n"
        "strd r8, r10, [r5, #-16]\n"
        "add r5, r5, r3\n"
        "strd r12, lr, [r5, #-16]\n"
        "str r1, [sp, #28]\n"
        "ldrd r0, r2, [sp, #36]\n"
        "add r9, r9, r2\n"
        "cmp r1, r0\n"
        "bne 3b\n"
        "add sp, #44\n"
        "pop {r4-r11, pc}\n"
        "7:\n" /* sums that begin with c, or a depth that is no multiple of 128 */
        "ldr r11, [sp, #24]\n"
        "cmp r11, #0\n"
        "bne 1f\n" FIRST_CHANNELS "b 2f\n"
        "1:\n"
        "ldrd r11, lr, [sp, #28]\n"
        "ldrd r0, r2, [r11]\n"
        "add r11, r11, lr\n"
        "ldrd r4, r6, [r11]\n"
        "add r11, r11, lr\n"
        "ldrd r8, r10, [r11]\n"
        "add r11, r11, lr\n"
        "ldrd r12, lr, [r11]\n"
        "2:\n"
        "ldr r11, [sp, #20]\n"
        "tst r11, #1\n"
        "beq 1f\n" CHANNELS "1:\n"
        "tst r11, #2\n"
        "beq 1f\n" CHANNELS CHANNELS "1:\n"
        "tst r11, #4\n"
        "beq 1f\n" CHANNELS_64 "1:\n"
        "ldr r11, [sp, #16]\n"
        "lsrs r11, r11, #1\n"
        "bne 4b\n"
        "b 6b\n");
}

/* One row: the remainder of a matrix whose rows are no multiple of four. */
static void one_row(const int8_t *a, const int8_t *b, int32_t *c, int32_t depth, int32_t columns,
                    int32_t skip, int32_t adds) {
    for (int32_t column = 0; column < columns; column += 4, b += skip) {
        register int32_t c0 __asm__("r4") = adds ? c[column] : 0;
        register int32_t c1 __asm__("r6") = adds ? c[column + 1] : 0;
        register int32_t c2 __asm__("r8") = adds ? c[column + 2] : 0;
        register int32_t c3 __asm__("r10") = adds ? c[column + 3] : 0;
        const int8_t *row = a;
        int32_t chunks = depth / 16;
        __asm__ volatile("1:\n"
                         "vldrb.u8 q0, [%[row]], #16\n"
                         "vldrb.u8 q1, [%[b]], #16\n"
                         "vmladava.s8 %[c0], q0, q1\n"
                         "vldrb.u8 q2, [%[b]], #16\n"
                         "vmladava.s8 %[c1], q0, q2\n"
                         "vldrb.u8 q1, [%[b]], #16\n"
                         "vmladava.s8 %[c2], q0, q1\n"
                         "vldrb.u8 q2, [%[b]], #16\n"
                         "vmladava.s8 %[c3], q0, q2\n"
                         "subs %[chunks], %[chunks], #1\n"
                         "bne 1b\n"
                         : [row] "+r"(row), [b] "+r"(b), [c0] "+r"(c0), [c1] "+r"(c1),
                           [c2] "+r"(c2), [c3] "+r"(c3), [chunks] "+r"(chunks)
                         :
                         : "cc", "memory");
        c[column] = c0;
        c[column + 1] = c1;
        c[column + 2] = c2;
        c[column + 3] = c3;
    }
}

#define HALF_BLOCK 32

static void block_of_four_rows(const int8_t *a, const int8_t *b, int32_t *c, int32_t depth,
                               int32_t columns, int32_t skip, int32_t stride, int32_t row,
                               int32_t adds) {
    two_columns(a, b, c, depth, columns, skip, stride * 4, row, adds);
    two_columns(a, b + HALF_BLOCK, c + 2, depth, columns, skip, stride * 4, row, adds);
}

#else

/* The same in C, for any processor. */
static void one_row(const int8_t *a, const int8_t *b, int32_t *c, int32_t depth, int32_t columns,
                    int32_t skip, int32_t adds) {
    for (int32_t column = 0; column < columns; column += 4, b += skip) {
        for (int32_t lane = 0; lane < 4 && !adds; lane++) {
            c[column + lane] = 0;
        }
        for (int32_t chunk = 0; chunk < depth; chunk += 16, b += 64) {
            for (int32_t lane = 0; lane < 4; lane++) {
                for (int32_t k = 0; k < 16; k++) {
                    c[column + lane] += a[chunk + k] * b[16 * lane + k];
                }
            }
        }
    }
}

static void block_of_four_rows(const int8_t *a, const int8_t *b, int32_t *c, int32_t depth,
                               int32_t columns, int32_t skip, int32_t stride, int32_t row,
                               int32_t adds) {
    for (int32_t i = 0; i < 4; i++) {
        one_row(a + i * row, b, c + i * stride, depth, columns, skip, adds);
    }
}

#endif

static int32_t product(const int8_t *a, const int8_t *b, int32_t *c, int32_t rows, int32_t columns,
                       int32_t depth, int32_t stride, int32_t row, int32_t block, int32_t adds) {
    const int32_t skip = block - 4 * depth;
    int32_t i = 0;
    for (; i + 4 <= rows; i += 4) {
        block_of_four_rows(a + i * row, b, c + i * stride, depth, columns, skip, stride, row, adds);
    }
    for (; i < rows; i++) {
        one_row(a + i * row, b, c + i * stride, depth, columns, skip, adds);
    }
    return 0;
}

/* c[i, j] += sum over k of a[i, k] b[j / 4, k / 16, j % 4, k % 16].
 *
 * Any number of rows; depth a multiple of 16, columns of 4, both positive; entries from one row of
 * a to the next, `row`, from one of c to the next, `stride`, and from four columns of b to the
 * next, `block`. */
int32_t ibert_mk_vmladava(const int8_t *a, const int8_t *b, int32_t *c, int32_t rows,
                          int32_t columns, int32_t depth, int32_t stride, int32_t row,
                          int32_t block) {
    return product(a, b, c, rows, columns, depth, stride, row, block, 1);
}

/* The same sums in the place of what c has. */
int32_t ibert_mk_vmladava_set(const int8_t *a, const int8_t *b, int32_t *c, int32_t rows,
                              int32_t columns, int32_t depth, int32_t stride, int32_t row,
                              int32_t block) {
    return product(a, b, c, rows, columns, depth, stride, row, block, 0);
}
