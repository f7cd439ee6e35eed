/* Matrix products with MUL of 64 bits: RISC-V processors without vectors (rv64gc).
 *
 * A register holds the weights of two columns, 32 bits apart: one MUL and one addition serve two
 * products. Eight rows by four columns take 16 registers of sums. The lower sum's sign is taken out of
 * the upper one at the end, which is exact where the products of a call add up to 32 bits: the
 * analysis of ranges proves it, and of bytes it holds below a depth of 65,793.
 *
 * Layouts, innermost last:
 *   a  int16 [depth][rows]      b  int8 [depth][4]      c  int32 [4][rows]
 * What a kernel computes: c[n][m] += sum over k of a[k][m] b[k][n], modulo 2^32. Words are aligned.
 */

#include <stdint.h>

#if !defined(IBERT_PLAIN_C) && defined(__GNUC__) && defined(__riscv_mul) && __riscv_xlen == 64

#define NAKED __attribute__((naked))
#define UNUSED __attribute__((unused))

/* Rows, with the registers of their sums: of columns 0 and 1, and of 2 and 3. */
#define ROW_0(DO, rows) DO("0", rows, "s0", "s1")
#define ROW_1(DO, rows) DO("1", rows, "s2", "s3")
#define ROW_2(DO, rows) DO("2", rows, "s4", "s5")
#define ROW_3(DO, rows) DO("3", rows, "s6", "s7")
#define ROW_4(DO, rows) DO("4", rows, "s8", "s9")
#define ROW_5(DO, rows) DO("5", rows, "s10", "s11")
#define ROW_6(DO, rows) DO("6", rows, "a4", "a5")
#define ROW_7(DO, rows) DO("7", rows, "a6", "a7")
#define ROWS_1(DO, rows) ROW_0(DO, rows)
#define ROWS_2(DO, rows) ROWS_1(DO, rows) ROW_1(DO, rows)
#define ROWS_3(DO, rows) ROWS_2(DO, rows) ROW_2(DO, rows)
#define ROWS_4(DO, rows) ROWS_3(DO, rows) ROW_3(DO, rows)
#define ROWS_5(DO, rows) ROWS_4(DO, rows) ROW_4(DO, rows)
#define ROWS_6(DO, rows) ROWS_5(DO, rows) ROW_5(DO, rows)
#define ROWS_7(DO, rows) ROWS_6(DO, rows) ROW_6(DO, rows)
#define ROWS_8(DO, rows) ROWS_7(DO, rows) ROW_7(DO, rows)

#define CLEAR(m, rows, c01, c23) "li " c01 ", 0\n\tli " c23 ", 0\n\t"
/* Of entry i of the depth; t0 and t2 are its weights. */
#define MULTIPLY(m, rows, c01, c23)                                                    \
    "lh t4, 2*" m "+2*" rows "*\\i(a0)\n\t"                                            \
    "mul t5, t4, t0\n\tmul t6, t4, t2\n\tadd " c01 ", " c01 ", t5\n\t"                 \
    "add " c23 ", " c23 ", t6\n\t"
#define STEPS(count, numbers, rows, ROWS)                                              \
    ".irp i, " numbers "\n\t"                                                          \
    "lb t1, 4*\\i+1(a1)\n\tlb t3, 4*\\i+3(a1)\n\tlb t0, 4*\\i(a1)\n\tlb t2, 4*\\i+2(a1)\n\t" \
    "slli t1, t1, 32\n\tslli t3, t3, 32\n\tadd t0, t0, t1\n\tadd t2, t2, t3\n\t"       \
    ROWS(MULTIPLY, rows)                                                               \
    ".endr\n\t"                                                                        \
    "addi a0, a0, 2*" rows "*" count "\n\taddi a1, a1, 4*" count "\n\t"
/* Two sums of one register are added to two columns of the result. */
#define ADD(sums, lower, upper)                                                        \
    "lw t1, " lower "(a2)\n\tlw t2, " upper "(a2)\n\tsext.w t0, " sums "\n\t"           \
    "sub " sums ", " sums ", t0\n\tsrai " sums ", " sums ", 32\n\t"                    \
    "add t1, t1, t0\n\tadd t2, t2, " sums "\n\t"                                       \
    "sw t1, " lower "(a2)\n\tsw t2, " upper "(a2)\n\t"
#define STORE(m, rows, c01, c23)                                                       \
    ADD(c01, "4*" m, "4*" m "+4*" rows) ADD(c23, "4*" m "+8*" rows, "4*" m "+12*" rows)

/* Eight entries at a time while there are eight, then one at a time; a3 is the end of the weights,
 * first that of whole groups. */
#define PRODUCT(rows, ROWS)                                                            \
    __asm__ volatile(                                                                  \
        "addi sp, sp, -112\n\t"                                                        \
        "sd s0, 0(sp)\n\tsd s1, 8(sp)\n\tsd s2, 16(sp)\n\tsd s3, 24(sp)\n\t"           \
        "sd s4, 32(sp)\n\tsd s5, 40(sp)\n\tsd s6, 48(sp)\n\tsd s7, 56(sp)\n\t"         \
        "sd s8, 64(sp)\n\tsd s9, 72(sp)\n\tsd s10, 80(sp)\n\tsd s11, 88(sp)\n\t"       \
        "slli a3, a3, 2\n\t"                                                           \
        "andi t0, a3, -32\n\t"                                                         \
        "add a3, a3, a1\n\t"                                                           \
        "sd a3, 96(sp)\n\t"                                                            \
        "add a3, a1, t0\n\t"                                                           \
        ROWS(CLEAR, rows)                                                              \
        "beq a1, a3, 2f\n"                                                             \
        "1:\n\t"                                                                       \
        STEPS("8", "0, 1, 2, 3, 4, 5, 6, 7", rows, ROWS)                               \
        "bne a1, a3, 1b\n"                                                             \
        "2:\n\t"                                                                       \
        "ld a3, 96(sp)\n\t"                                                            \
        "beq a1, a3, 4f\n"                                                             \
        "3:\n\t"                                                                       \
        STEPS("1", "0", rows, ROWS)                                                    \
        "bne a1, a3, 3b\n"                                                             \
        "4:\n\t"                                                                       \
        ROWS(STORE, rows)                                                              \
        "ld s0, 0(sp)\n\tld s1, 8(sp)\n\tld s2, 16(sp)\n\tld s3, 24(sp)\n\t"           \
        "ld s4, 32(sp)\n\tld s5, 40(sp)\n\tld s6, 48(sp)\n\tld s7, 56(sp)\n\t"         \
        "ld s8, 64(sp)\n\tld s9, 72(sp)\n\tld s10, 80(sp)\n\tld s11, 88(sp)\n\t"       \
        "addi sp, sp, 112\n\t"                                                         \
        "ret\n\t")

NAKED void ibert_mk_rv64m_8x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                              UNUSED int32_t depth)
{
    PRODUCT("8", ROWS_8);
}

NAKED void ibert_mk_rv64m_7x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                              UNUSED int32_t depth)
{
    PRODUCT("7", ROWS_7);
}

NAKED void ibert_mk_rv64m_6x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                              UNUSED int32_t depth)
{
    PRODUCT("6", ROWS_6);
}

NAKED void ibert_mk_rv64m_5x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                              UNUSED int32_t depth)
{
    PRODUCT("5", ROWS_5);
}

NAKED void ibert_mk_rv64m_4x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                              UNUSED int32_t depth)
{
    PRODUCT("4", ROWS_4);
}

NAKED void ibert_mk_rv64m_3x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                              UNUSED int32_t depth)
{
    PRODUCT("3", ROWS_3);
}

NAKED void ibert_mk_rv64m_2x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                              UNUSED int32_t depth)
{
    PRODUCT("2", ROWS_2);
}

NAKED void ibert_mk_rv64m_1x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                              UNUSED int32_t depth)
{
    PRODUCT("1", ROWS_1);
}

#else

static void product(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth, int32_t rows)
{
    for (int32_t n = 0; n < 4; ++n) {
        for (int32_t m = 0; m < rows; ++m) {
            uint32_t sum = (uint32_t)c[n * rows + m];
            for (int32_t k = 0; k < depth; ++k) {
                sum += (uint32_t)(int32_t)a[k * rows + m] * (uint32_t)(int32_t)b[k * 4 + n];
            }
            c[n * rows + m] = (int32_t)sum;
        }
    }
}

void ibert_mk_rv64m_8x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 8);
}

void ibert_mk_rv64m_7x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 7);
}

void ibert_mk_rv64m_6x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 6);
}

void ibert_mk_rv64m_5x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 5);
}

void ibert_mk_rv64m_4x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 4);
}

void ibert_mk_rv64m_3x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 3);
}

void ibert_mk_rv64m_2x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 2);
}

void ibert_mk_rv64m_1x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 1);
}

#endif
