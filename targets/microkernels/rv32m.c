/* Matrix products with MUL: 32-bit RISC-V with multiplication and without SIMD (rv32im).
 *
 * Activations are widened to halves, so that one LH loads a byte of either signedness; weights stay
 * bytes. Four rows by four columns take 16 of the registers: eight loads and 32 other instructions
 * for 16 products, and each result is used two instructions later. Two products in one MUL, 16 bits
 * apart, would overflow after two entries of the depth, and separating them costs what it saves.
 *
 * Layouts, innermost last:
 *   a  int16 [depth][rows]      b  int8 [depth][4]      c  int32 [4][rows]
 * What a kernel computes: c[n][m] += sum over k of a[k][m] b[k][n], modulo 2^32. Words are aligned.
 */

#include <stdint.h>

#if !defined(IBERT_PLAIN_C) && defined(__GNUC__) && defined(__riscv_mul) && \
    __riscv_xlen == 32 && !defined(__riscv_32e)

#define NAKED __attribute__((naked))
#define UNUSED __attribute__((unused))

/* Rows, with the registers of their sums. */
#define ROW_0(DO, rows) DO("0", rows, "s0", "s1", "s2", "s3")
#define ROW_1(DO, rows) DO("1", rows, "s4", "s5", "s6", "s7")
#define ROW_2(DO, rows) DO("2", rows, "s8", "s9", "s10", "s11")
#define ROW_3(DO, rows) DO("3", rows, "a4", "a5", "a6", "a7")
#define ROWS_1(DO) ROW_0(DO, "1")
#define ROWS_2(DO) ROW_0(DO, "2") ROW_1(DO, "2")
#define ROWS_3(DO) ROW_0(DO, "3") ROW_1(DO, "3") ROW_2(DO, "3")
#define ROWS_4(DO) ROW_0(DO, "4") ROW_1(DO, "4") ROW_2(DO, "4") ROW_3(DO, "4")

#define LOAD(m, rows, c0, c1, c2, c3)                                                  \
    "lw " c0 ", 4*" m "(a2)\n\tlw " c1 ", 4*" m "+4*" rows "(a2)\n\t"                  \
    "lw " c2 ", 4*" m "+8*" rows "(a2)\n\tlw " c3 ", 4*" m "+12*" rows "(a2)\n\t"
#define STORE(m, rows, c0, c1, c2, c3)                                                 \
    "sw " c0 ", 4*" m "(a2)\n\tsw " c1 ", 4*" m "+4*" rows "(a2)\n\t"                  \
    "sw " c2 ", 4*" m "+8*" rows "(a2)\n\tsw " c3 ", 4*" m "+12*" rows "(a2)\n\t"
/* Of entry i of the depth; t0 to t3 are its weights. */
#define MULTIPLY(m, rows, c0, c1, c2, c3)                                              \
    "lh t4, 2*" m "+2*" rows "*\\i(a0)\n\t"                                            \
    "mul t5, t4, t0\n\tmul t6, t4, t1\n\tadd " c0 ", " c0 ", t5\n\t"                   \
    "mul t5, t4, t2\n\tadd " c1 ", " c1 ", t6\n\tmul t6, t4, t3\n\t"                   \
    "add " c2 ", " c2 ", t5\n\tadd " c3 ", " c3 ", t6\n\t"
#define STEPS(count, numbers, rows, ROWS)                                              \
    ".irp i, " numbers "\n\t"                                                          \
    "lb t0, 4*\\i(a1)\n\tlb t1, 4*\\i+1(a1)\n\tlb t2, 4*\\i+2(a1)\n\tlb t3, 4*\\i+3(a1)\n\t" \
    ROWS(MULTIPLY)                                                                     \
    ".endr\n\t"                                                                        \
    "addi a0, a0, 2*" rows "*" count "\n\taddi a1, a1, 4*" count "\n\t"

/* Eight entries at a time while there are eight, then one at a time; a3 is the end of the weights,
 * first that of whole groups. */
#define PRODUCT(rows, ROWS)                                                            \
    __asm__ volatile(                                                                  \
        "addi sp, sp, -64\n\t"                                                         \
        "sw s0, 0(sp)\n\tsw s1, 4(sp)\n\tsw s2, 8(sp)\n\tsw s3, 12(sp)\n\t"            \
        "sw s4, 16(sp)\n\tsw s5, 20(sp)\n\tsw s6, 24(sp)\n\tsw s7, 28(sp)\n\t"         \
        "sw s8, 32(sp)\n\tsw s9, 36(sp)\n\tsw s10, 40(sp)\n\tsw s11, 44(sp)\n\t"       \
        "slli a3, a3, 2\n\t"                                                           \
        "andi t0, a3, -32\n\t"                                                         \
        "add a3, a3, a1\n\t"                                                           \
        "sw a3, 48(sp)\n\t"                                                            \
        "add a3, a1, t0\n\t"                                                           \
        ROWS(LOAD)                                                                     \
        "beq a1, a3, 2f\n"                                                             \
        "1:\n\t"                                                                       \
        STEPS("8", "0, 1, 2, 3, 4, 5, 6, 7", rows, ROWS)                               \
        "bne a1, a3, 1b\n"                                                             \
        "2:\n\t"                                                                       \
        "lw a3, 48(sp)\n\t"                                                            \
        "beq a1, a3, 4f\n"                                                             \
        "3:\n\t"                                                                       \
        STEPS("1", "0", rows, ROWS)                                                    \
        "bne a1, a3, 3b\n"                                                             \
        "4:\n\t"                                                                       \
        ROWS(STORE)                                                                    \
        "lw s0, 0(sp)\n\tlw s1, 4(sp)\n\tlw s2, 8(sp)\n\tlw s3, 12(sp)\n\t"            \
        "lw s4, 16(sp)\n\tlw s5, 20(sp)\n\tlw s6, 24(sp)\n\tlw s7, 28(sp)\n\t"         \
        "lw s8, 32(sp)\n\tlw s9, 36(sp)\n\tlw s10, 40(sp)\n\tlw s11, 44(sp)\n\t"       \
        "addi sp, sp, 64\n\t"                                                          \
        "ret\n\t")

NAKED void ibert_mk_rv32m_4x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                            UNUSED int32_t depth)
{
    PRODUCT("4", ROWS_4);
}

NAKED void ibert_mk_rv32m_3x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                            UNUSED int32_t depth)
{
    PRODUCT("3", ROWS_3);
}

NAKED void ibert_mk_rv32m_2x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
                            UNUSED int32_t depth)
{
    PRODUCT("2", ROWS_2);
}

NAKED void ibert_mk_rv32m_1x4(UNUSED const int16_t *a, UNUSED const int8_t *b, UNUSED int32_t *c,
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

void ibert_mk_rv32m_4x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 4);
}

void ibert_mk_rv32m_3x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 3);
}

void ibert_mk_rv32m_2x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 2);
}

void ibert_mk_rv32m_1x4(const int16_t *a, const int8_t *b, int32_t *c, int32_t depth)
{
    product(a, b, c, depth, 1);
}

#endif
