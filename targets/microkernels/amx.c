/* The 8-bit matrix product of x86 processors with tiles (AMX, Intel since Sapphire Rapids).
 *
 * TDPBUSD multiplies 16 rows of 64 unsigned bytes by 16 columns of as many signed ones and adds to
 * 16 x 16 sums of 32 bits, exactly. Two tiles of rows meet two of columns, so that each operand is
 * used twice. Weights lie as VPDPBUSD takes them: four bytes of 16 columns, 64 bytes, are a row of
 * a tile. Rows and depth that fill no tile make smaller ones, which take less time.
 *
 * Tiles are a thread's: each call sets them up (some 200 cycles) and gives them back, so that no
 * other code finds them in use and a switch of threads does not save 8 KB.
 *
 * In plain C, the operations on tiles are functions that do the same and refuse shapes that do not
 * fit together, as the processor does; what is computed of them is the same code. */

#include <stdint.h>

enum { ROWS = 16, ROW_BYTES = 64, GROUP = 4, COLUMNS = 16 };

/* As LDTILECFG reads it. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shapes;

#if defined(__x86_64__) && !defined(IBERT_PLAIN_C)

#define TILES
#define SET_UP(shapes) __asm__ volatile("ldtilecfg %0" : : "m"(shapes))
#define LOAD(tile, from, stride)                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile             \
                     :                                              \
                     : "r"(from), "r"((int64_t)(stride))            \
                     : "memory")
#define STORE(tile, to, stride)                                     \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"         \
                     :                                              \
                     : "r"(to), "r"((int64_t)(stride))              \
                     : "memory")
#define MULTIPLY(sums, left, right) \
    __asm__ volatile("tdpbusd %tmm" #right ", %tmm" #left ", %tmm" #sums)
#define GIVE_BACK __asm__ volatile("tilerelease")

/* The kernel gives tiles to processes that asked for them. Whoever loads a library finds out whether
 * it did; here it is asked for programs that do not. */
enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
int arch_prctl(int code, unsigned long component);

__attribute__((constructor)) static void ask_for_tiles(void) {
    (void)arch_prctl(ARCH_REQ_XCOMP_PERM, TILE_DATA);
}

#else

typedef union {
    uint8_t bytes[ROWS][ROW_BYTES];
    int8_t weights[ROWS][COLUMNS][GROUP];
    int32_t sums[ROWS][COLUMNS];
} tile;

typedef struct {
    tile_shapes shapes;
    tile of[8];
} tiles;

static void require(int holds) {
    if (!holds) {
        __builtin_trap();
    }
}

static void set_up(tiles *all, const tile_shapes *shapes) {
    static const tiles empty;
    require(shapes->palette == 1 && shapes->start_row == 0);
    *all = empty;
    all->shapes = *shapes;
    for (int32_t i = 0; i < 16; i++) {
        const int32_t rows = shapes->rows[i], bytes = shapes->bytes[i];
        require(rows <= ROWS && bytes <= ROW_BYTES && (rows == 0) == (bytes == 0));
        require(i < 8 || rows == 0);
    }
}

static void move(tiles *all, int32_t number, uint8_t *memory, int64_t stride, int32_t stores) {
    const int32_t rows = all->shapes.rows[number], bytes = all->shapes.bytes[number];
    require(rows > 0);
    for (int32_t i = 0; i < rows; i++) {
        for (int32_t j = 0; j < bytes; j++) {
            if (stores) {
                memory[i * stride + j] = all->of[number].bytes[i][j];
            } else {
                all->of[number].bytes[i][j] = memory[i * stride + j];
            }
        }
    }
}

static void multiply(tiles *all, int32_t sums, int32_t left, int32_t right) {
    const tile_shapes *shapes = &all->shapes;
    const int32_t rows = shapes->rows[sums], columns = shapes->bytes[sums] / GROUP;
    const int32_t groups = shapes->rows[right];
    require(rows > 0 && shapes->rows[left] == rows && shapes->bytes[left] == groups * GROUP);
    require(groups > 0 && shapes->bytes[right] == shapes->bytes[sums]);
    for (int32_t i = 0; i < rows; i++) {
        for (int32_t j = 0; j < columns; j++) {
            uint32_t sum = (uint32_t)all->of[sums].sums[i][j];
            for (int32_t k = 0; k < groups * GROUP; k++) {
                const int32_t weight = all->of[right].weights[k / GROUP][j][k % GROUP];
                sum += (uint32_t)(all->of[left].bytes[i][k] * weight);
            }
            all->of[sums].sums[i][j] = (int32_t)sum;
        }
    }
}

#define TILES tiles all;
#define SET_UP(shapes) set_up(&all, &shapes)
#define LOAD(tile, from, stride) move(&all, tile, (uint8_t *)(uintptr_t)(from), stride, 0)
#define STORE(tile, to, stride) move(&all, tile, (uint8_t *)(to), stride, 1)
#define MULTIPLY(sums, left, right) multiply(&all, sums, left, right)
#define GIVE_BACK (void)all

#endif

static int32_t smaller(int32_t one, int32_t other) { return one < other ? one : other; }

/* Tiles 0 to 3 are sums of upper and lower rows by two tiles of columns, 4 and 5 activations of
 * these rows, 6 and 7 weights. */
static tile_shapes shapes_of(int32_t upper, int32_t lower, int32_t bytes) {
    tile_shapes shapes = {.palette = 1};
    for (int32_t i = 0; i < 2; i++) {
        const int32_t rows = i == 0 ? upper : lower;
        if (rows > 0) {
            shapes.rows[2 * i] = shapes.rows[2 * i + 1] = shapes.rows[4 + i] = (uint8_t)rows;
            shapes.bytes[2 * i] = shapes.bytes[2 * i + 1] = ROW_BYTES;
            shapes.bytes[4 + i] = (uint16_t)bytes;
        }
        shapes.rows[6 + i] = (uint8_t)(bytes / GROUP);
        shapes.bytes[6 + i] = ROW_BYTES;
    }
    return shapes;
}

/* c[i, j] += sum over k of a[i, k] b[j / 16, k / 4, j % 16, k % 4].
 *
 * Any number of rows; depth a multiple of 4, columns of 16, both positive; entries from one row of
 * a to the next, `row`, from one of c to the next, `stride`, and from 16 columns of b to the next,
 * `block`. */
int32_t ibert_mk_tdpbusd(const uint8_t *a, const int8_t *b, int32_t *c, int32_t rows,
                         int32_t columns, int32_t depth, int32_t stride, int32_t row,
                         int32_t block) {
    const int64_t to_lower = (int64_t)ROWS * row, sums_to_lower = (int64_t)ROWS * stride;
    const int64_t sum_bytes = (int64_t)stride * (int64_t)sizeof *c;
    TILES
    for (int32_t i = 0; i < rows; i += 2 * ROWS, a += 2 * to_lower, c += 2 * sums_to_lower) {
        const int32_t upper = smaller(rows - i, ROWS), lower = smaller(rows - i - upper, ROWS);
        /* Whole tiles of the depth, then what is left of it. */
        for (int32_t start = 0, end; start < depth; start = end) {
            const int32_t whole = (depth - start) / ROW_BYTES * ROW_BYTES;
            const int32_t bytes = whole > 0 ? ROW_BYTES : depth - start;
            const tile_shapes shapes = shapes_of(upper, lower, bytes);
            SET_UP(shapes);
            end = start + (whole > 0 ? whole : bytes);
            for (int32_t j = 0; j < columns; j += 2 * COLUMNS) {
                const int32_t both = j + COLUMNS < columns;
                const int8_t *weights = b + (int64_t)(j / COLUMNS) * block;
                LOAD(0, c + j, sum_bytes);
                if (both) {
                    LOAD(1, c + j + COLUMNS, sum_bytes);
                }
                if (lower > 0) {
                    LOAD(2, c + j + sums_to_lower, sum_bytes);
                    if (both) {
                        LOAD(3, c + j + COLUMNS + sums_to_lower, sum_bytes);
                    }
                }
                for (int32_t k = start; k < end; k += bytes) {
                    LOAD(4, a + k, row);
                    LOAD(6, weights + (int64_t)k * COLUMNS, ROW_BYTES);
                    MULTIPLY(0, 4, 6);
                    if (both) {
                        LOAD(7, weights + block + (int64_t)k * COLUMNS, ROW_BYTES);
                        MULTIPLY(1, 4, 7);
                    }
                    if (lower > 0) {
                        LOAD(5, a + to_lower + k, row);
                        MULTIPLY(2, 5, 6);
                        if (both) {
                            MULTIPLY(3, 5, 7);
                        }
                    }
                }
                STORE(0, c + j, sum_bytes);
                if (both) {
                    STORE(1, c + j + COLUMNS, sum_bytes);
                }
                if (lower > 0) {
                    STORE(2, c + j + sums_to_lower, sum_bytes);
                    if (both) {
                        STORE(3, c + j + COLUMNS + sums_to_lower, sum_bytes);
                    }
                }
            }
        }
    }
    GIVE_BACK;
    return 0;
}
