/* The matrix product of RISC-V processors with vectors (RVV 1.0) of any length.
 *
 * VWMACC.VX multiplies as many columns of weights as a group of two registers holds, widened to 16
 * bits, by an activation from a general register, and adds to sums of 32 bits. Seven rows of sums, in
 * four registers each, share the weights of two steps: all 32 registers. Registers of 256 bits hold a
 * block of columns, shorter ones go over it in parts. Sums are exact modulo 2^32.
 */

#include <stdint.h>

enum { COLUMNS = 32 };

#if !defined(IBERT_PLAIN_C) && defined(__GNUC__) && defined(__riscv_v) && __riscv_xlen == 64

#define UNUSED __attribute__((unused))

/* Rows, with the registers of their address, of an activation and of their sums. */
#define ROW_0(DO) DO("a0", "a4", "v0")
#define ROW_1(DO) DO("t0", "a5", "v4")
#define ROW_2(DO) DO("t1", "a7", "v8")
#define ROW_3(DO) DO("t2", "t6", "v12")
#define ROW_4(DO) DO("t3", "s0", "v16")
#define ROW_5(DO) DO("t4", "s1", "v20")
#define ROW_6(DO) DO("t5", "s2", "v24")
#define ROWS_1(DO) ROW_0(DO)
#define ROWS_2(DO) ROWS_1(DO) ROW_1(DO)
#define ROWS_3(DO) ROWS_2(DO) ROW_2(DO)
#define ROWS_4(DO) ROWS_3(DO) ROW_3(DO)
#define ROWS_5(DO) ROWS_4(DO) ROW_4(DO)
#define ROWS_6(DO) ROWS_5(DO) ROW_5(DO)
#define ROWS_7(DO) ROWS_6(DO) ROW_6(DO)

/* a6 goes from row to row of the result. */
#define FETCH(row, entry, sums) "vle32.v " sums ", (a6)\n\tadd a6, a6, s4\n\t"
#define STORE(row, entry, sums) "vse32.v " sums ", (a6)\n\tadd a6, a6, s4\n\t"
/* Of entry i of the depth, with its weights in the vector register w and the next. */
#define ACTIVATION(row, entry, sums) "lh " entry ", 2*\\i(" row ")\n\t"
#define MULTIPLY(row, entry, sums) "vwmacc.vx " sums ", " entry ", v\\w\n\t"
#define ADVANCE_1(row, entry, sums) "addi " row ", " row ", 2\n\t"
#define ADVANCE_4(row, entry, sums) "addi " row ", " row ", 8\n\t"

/* Weights of eight bits are loaded to the upper of two registers, and widened to both. */
#define LOAD_8 "vle8.v v\\v, (a1)\n\taddi a1, a1, 32\n\t"
#define WIDEN_8 "vsext.vf2 v\\w, v\\v\n\t"
#define LOAD_16 "vle16.v v\\w, (a1)\n\taddi a1, a1, 64\n\t"
#define WIDEN_16

#define STEP(BITS, ROWS)                                                               \
    ".macro ibert_step i, w, v\n\t"                                                    \
    LOAD_##BITS ROWS(ACTIVATION) WIDEN_##BITS ROWS(MULTIPLY)                           \
    ".endm\n\t"

/* Four entries at a time while there are four, then one at a time; a3 is the end of the weights, s5
 * that of whole groups of four. The result is the number of columns. */
#define PRODUCT(BITS, SHIFT, ROWS)                                                     \
    __asm__ volatile(                                                                  \
        ".option push\n\t.option norelax\n\t"                                          \
        STEP(BITS, ROWS)                                                               \
        "addi sp, sp, -48\n\t"                                                         \
        "sd s0, 0(sp)\n\tsd s1, 8(sp)\n\tsd s2, 16(sp)\n\t"                            \
        "sd s3, 24(sp)\n\tsd s4, 32(sp)\n\tsd s5, 40(sp)\n\t"                          \
        "vsetvli s3, a6, e16, m2, ta, ma\n\t"                                          \
        "mv s4, a5\n\tmv a6, a2\n\t"                                                   \
        ROWS(FETCH)                                                                    \
        "add t0, a0, a4\n\tadd t1, t0, a4\n\tadd t2, t1, a4\n\t"                       \
        "add t3, t2, a4\n\tadd t4, t3, a4\n\tadd t5, t4, a4\n\t"                       \
        "andi s5, a3, -4\n\t"                                                          \
        "slli s5, s5, " SHIFT "\n\tslli a3, a3, " SHIFT "\n\t"                         \
        "add s5, s5, a1\n\tadd a3, a3, a1\n\t"                                         \
        "beq a1, s5, 2f\n"                                                             \
        "1:\n\t"                                                                       \
        "ibert_step 0, 28, 29\n\tibert_step 1, 30, 31\n\t"                             \
        "ibert_step 2, 28, 29\n\tibert_step 3, 30, 31\n\t"                             \
        ROWS(ADVANCE_4)                                                                \
        "bne a1, s5, 1b\n"                                                             \
        "2:\n\t"                                                                       \
        "beq a1, a3, 4f\n"                                                             \
        "3:\n\t"                                                                       \
        "ibert_step 0, 28, 29\n\t"                                                     \
        ROWS(ADVANCE_1)                                                                \
        "bne a1, a3, 3b\n"                                                             \
        "4:\n\t"                                                                       \
        "mv a6, a2\n\t"                                                                \
        ROWS(STORE)                                                                    \
        "mv a0, s3\n\t"                                                                \
        "ld s0, 0(sp)\n\tld s1, 8(sp)\n\tld s2, 16(sp)\n\t"                            \
        "ld s3, 24(sp)\n\tld s4, 32(sp)\n\tld s5, 40(sp)\n\t"                          \
        "addi sp, sp, 48\n\t"                                                          \
        "ret\n\t"                                                                      \
        ".purgem ibert_step\n\t.option pop")

/* Rows of the tile by as many of the columns as registers hold: how many. Row and stride in bytes. */
#define TILE(BITS, SHIFT, COUNT)                                                       \
    __attribute__((naked, noinline)) static int64_t tile_##BITS##_##COUNT(             \
        UNUSED const int16_t *a, UNUSED const int##BITS##_t *b, UNUSED int32_t *c,     \
        UNUSED int64_t depth, UNUSED int64_t row, UNUSED int64_t stride,               \
        UNUSED int64_t columns)                                                        \
    {                                                                                  \
        PRODUCT(BITS, SHIFT, ROWS_##COUNT);                                            \
    }
#define TILES(BITS, SHIFT)                                                             \
    TILE(BITS, SHIFT, 1)                                                               \
    TILE(BITS, SHIFT, 2)                                                               \
    TILE(BITS, SHIFT, 3)                                                               \
    TILE(BITS, SHIFT, 4)                                                               \
    TILE(BITS, SHIFT, 5)                                                               \
    TILE(BITS, SHIFT, 6)                                                               \
    TILE(BITS, SHIFT, 7)                                                               \
    static int64_t product_##BITS(const int16_t *a, const int##BITS##_t *b, int32_t *c, \
                                  int32_t rows, int64_t depth, int64_t row,            \
                                  int64_t stride, int64_t columns)                     \
    {                                                                                  \
        switch (rows) {                                                                \
        case 1: return tile_##BITS##_1(a, b, c, depth, row, stride, columns);          \
        case 2: return tile_##BITS##_2(a, b, c, depth, row, stride, columns);          \
        case 3: return tile_##BITS##_3(a, b, c, depth, row, stride, columns);          \
        case 4: return tile_##BITS##_4(a, b, c, depth, row, stride, columns);          \
        case 5: return tile_##BITS##_5(a, b, c, depth, row, stride, columns);          \
        case 6: return tile_##BITS##_6(a, b, c, depth, row, stride, columns);          \
        default: return tile_##BITS##_7(a, b, c, depth, row, stride, columns);         \
        }                                                                              \
    }

TILES(8, "5")
TILES(16, "6")

#else

#define PRODUCT(BITS)                                                                  \
    static int64_t product_##BITS(const int16_t *a, const int##BITS##_t *b, int32_t *c, \
                                  int32_t rows, int64_t depth, int64_t row,            \
                                  int64_t stride, int64_t columns)                     \
    {                                                                                  \
        for (int32_t i = 0; i < rows; ++i) {                                           \
            for (int64_t n = 0; n < columns; ++n) {                                    \
                uint32_t sum = (uint32_t)c[i * (stride / 4) + n];                      \
                for (int64_t k = 0; k < depth; ++k) {                                  \
                    sum += (uint32_t)(a[i * (row / 2) + k] * b[COLUMNS * k + n]);      \
                }                                                                      \
                c[i * (stride / 4) + n] = (int32_t)sum;                                \
            }                                                                          \
        }                                                                              \
        return columns;                                                                \
    }

PRODUCT(8)
PRODUCT(16)

#endif

enum { MOST_ROWS = 7 };

/* c[i, j] += sum over k of a[i, k] b[j / 32, k, j % 32].
 *
 * Any number of rows, shared out evenly; columns a multiple of 32; entries from one row of a to the
 * next, `row`, from one of c to the next, `stride`, and from 32 columns of b to the next, `block`. */
#define MICROKERNEL(BITS)                                                              \
    int32_t parts = (rows + MOST_ROWS - 1) / MOST_ROWS;                                \
    for (; parts > 0; --parts) {                                                       \
        const int32_t count = (rows + parts - 1) / parts;                              \
        for (int32_t j = 0; j < columns; j += COLUMNS) {                               \
            const int##BITS##_t *weights = b + (int64_t)j / COLUMNS * block;           \
            for (int64_t n = 0; n < COLUMNS;) {                                        \
                n += product_##BITS(a, weights + n, c + j + n, count, depth,           \
                                    2 * (int64_t)row, 4 * (int64_t)stride, COLUMNS - n); \
            }                                                                          \
        }                                                                              \
        rows -= count;                                                                 \
        a += (int64_t)count * row;                                                     \
        c += (int64_t)count * stride;                                                  \
    }                                                                                  \
    return 0

int32_t ibert_mk_vwmacc(const int16_t *a, const int8_t *b, int32_t *c, int32_t rows,
                        int32_t columns, int32_t depth, int32_t stride, int32_t row,
                        int32_t block)
{
    MICROKERNEL(8);
}

int32_t ibert_mk_vwmacc_short(const int16_t *a, const int16_t *b, int32_t *c, int32_t rows,
                              int32_t columns, int32_t depth, int32_t stride, int32_t row,
                              int32_t block)
{
    MICROKERNEL(16);
}
