// The matrix product of a linear layer, one block of threads per tile of results:
// C[M, N] = A[M, K] W[N, K]^T, both operands int8 in row-major order, sums in 32 bits.
//
// W may be in half bytes: in the 16 bytes of a group of 32 of the depth, byte k has number k in its
// lower half and number k + 16 in its upper half, which are what one product takes. They are copied
// as they are, and widened in the registers of the warp that multiplies: (half byte - 8) times the
// scale of the group, 1 to 16, which has eight bits. Scales less 1 are two to a byte, [N, G].
//
// A generated kernel calls `multiply`, which leaves sums in registers of its threads. Columns of
// a warp's tile are permuted by the order in which ldmatrix loads rows of W, so that every lane has
// runs of neighbouring columns of a row (`Direct`), for which the kernel computes its epilogue with
// vectors of operands and results. Where several warps share a tile, each with a part of the depth,
// their sums come together in shared memory, piece by piece (`stage` and `Runs`).
//
// Shared memory. A stage holds `stage_depth` of the depth: the rows of A, then those of W, each of
// stage_depth bytes. Its chunks of 16 bytes are permuted by the row, so that the eight rows of a
// matrix of ldmatrix have the same chunk at eight different places modulo 128 bytes: neither
// copying to shared memory nor ldmatrix meets a bank twice.
//
// Latency. Where copies are asynchronous, `stages - 1` of them are under way. Where not, a thread
// loads its share of the next stage to registers before it multiplies the present one, and stores
// it to the other of two stages afterwards. Fragments are loaded one step ahead in both cases, also
// across the barrier.
#pragma once

#include "primitives.cuh"

namespace ibert {

// Parameters
//   M, N, K          rows, columns, and depth of W in memory, a multiple of 16, padded by zeros
//   lhs_depth        depth of A in memory: K, or less where W is padded
//   block_rows, block_columns   tile of a block
//   warp_rows, warp_columns     tile of a warp, multiples of 16
//   warp_depths      warps that share a warp's tile, each with its part of every stage's depth
//   stage_depth      depth of a stage, 32 times warp_depths or a multiple of it, a power of two
//   stages           stages in shared memory; 2 where copies are not asynchronous
//   halves           whether W is in half bytes; K is a multiple of 32 then
template <int M, int N, int K, int lhs_depth, int block_rows, int block_columns, int warp_rows,
          int warp_columns, int warp_depths, int stage_depth, int stages, bool halves = false>
struct Gemm {
  // ---- Who does what ----------------------------------------------------------------------------

  static constexpr int warps_across = block_columns / warp_columns;
  static constexpr int warps_down = block_rows / warp_rows;
  static constexpr int tile_warps = warps_across * warps_down;
  static constexpr int threads = 32 * tile_warps * warp_depths;
  static constexpr int row_tiles = warp_rows / 16;
  static constexpr int column_tiles = warp_columns / 8;
  static constexpr int accumulators = 4 * row_tiles * column_tiles;
  // 7.5 multiplies a depth of 16 at a time: fragments of that depth take half of the registers. A
  // word of half bytes has a depth of 32.
  static constexpr int step_depth = async_copies || halves ? 32 : 16;
  static constexpr int warp_depth = stage_depth / warp_depths;
  static constexpr int steps = warp_depth / step_depth;
  static constexpr int stage_count = (K + stage_depth - 1) / stage_depth;
  // Bytes of a row of W in a stage, in memory, and of the scales of a row.
  static constexpr int rhs_pitch = halves ? stage_depth / 2 : stage_depth;
  static constexpr int rhs_bytes = halves ? K / 2 : K;
  static constexpr int scale_bytes = (K / 32 + 1) / 2;
  static constexpr int stage_bytes = block_rows * stage_depth + block_columns * rhs_pitch;
  // Whether a lane's sums are those that it needs: no other warp has a part of them.
  static constexpr bool direct = warp_depths == 1;
  // Neighbouring columns of a lane, and columns of the four lanes of a row: a group.
  static constexpr int run_columns = warp_columns % 32 == 0 ? 8 : 4;
  static constexpr int group_columns = 4 * run_columns;
  // Words from a row of a staged piece to the next: eight more than it has columns, so that the
  // four rows that half a warp writes lie in different banks.
  static constexpr int pitch = warp_columns + 8;
  static constexpr int piece_rows = 16;
  static constexpr int pieces = warp_rows / piece_rows;
  static constexpr int piece_words = piece_rows * pitch;
  static constexpr int staged_bytes = direct ? 0 : 4 * piece_words * tile_warps * warp_depths;
  static constexpr int shared_bytes =
      stages * stage_bytes > staged_bytes ? stages * stage_bytes : staged_bytes;

  static constexpr int padding = halves ? 32 : 16;
  static_assert(K % padding == 0 && lhs_depth <= K && lhs_depth > K - padding, "W is padded");
  static_assert(block_rows % warp_rows == 0 && block_columns % warp_columns == 0, "whole warps");
  static_assert(warp_rows % 16 == 0 && warp_columns % 16 == 0, "whole fragments");
  static_assert(warp_depth % 32 == 0 && (stage_depth & (stage_depth - 1)) == 0, "whole steps");
  static_assert(stages >= 2 && stages <= 8, "one stage is read while another is written");

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }
  // Place of the warp's tile in the block's, and its part of the depth.
  static __device__ __forceinline__ int first_row() {
    return warp() % tile_warps % warps_down * warp_rows;
  }
  static __device__ __forceinline__ int first_column() {
    return warp() % tile_warps / warps_down * warp_columns;
  }
  static __device__ __forceinline__ int depth_part() { return warp() / tile_warps; }

  // ---- From global to shared memory -------------------------------------------------------------

  // Row of W in the warp's tile that is column `column` of the instruction's tile `tile`. Lane t of
  // a row has columns 2t and 2t + 1 of each: they become neighbours of its columns of other tiles.
  static __device__ __forceinline__ int permuted(int tile, int column) {
    if (!direct) return tile * 8 + column;
    constexpr int group_tiles = run_columns / 2;
    return tile / group_tiles * group_columns + column / 2 * run_columns +
           tile % group_tiles * 2 + column % 2;
  }

  // Chunk of a row of an operand, of `pitch` bytes in a stage, in bytes from its first. The eight
  // rows of a matrix are neighbours, but for those of a permuted W, which differ in their
  // lowest bit and in the lane that they are for.
  template <int pitch, bool is_permuted>
  static __device__ __forceinline__ int place(int row, int chunk) {
    constexpr int chunks = pitch / 16;
    constexpr int rows_per_line = chunks < 8 ? 8 / chunks : 1;
    constexpr int places = chunks < 8 ? chunks : 8;
    const int lane_of_row = row / run_columns % 4;
    if (is_permuted && places == 2) {
      // Of the four rows of a line a matrix has two: where the lane is, they are the other two.
      return (row * pitch + (chunk ^ lane_of_row % 2) * 16) ^ lane_of_row / 2 * 64;
    }
    const int turn = !is_permuted  ? row / rows_per_line % places
                     : places <= 4 ? lane_of_row % places
                                   : lane_of_row * 2 + row % 2;
    return row * pitch + (chunk ^ turn) * 16;
  }

  // What a thread copies of an operand, `rows` rows of `pitch` bytes in a stage, `total` of `bytes`
  // in memory: chunks threadIdx.x, threadIdx.x + threads ... in row-major order.
  template <int rows, int total, int bytes, int pitch, bool is_permuted>
  struct Share {
    static constexpr int chunks = pitch / 16;
    static constexpr int count = (rows * chunks + threads - 1) / threads;
    static constexpr bool whole = rows * chunks % threads == 0;
    // Whether rows in memory begin at multiples of 16 bytes.
    static constexpr bool aligned = bytes % 16 == 0;

    static __device__ __forceinline__ bool exists(int i) {
      return whole || threadIdx.x + i * threads < rows * chunks;
    }
    // Where the chunks of a row divide the number of threads, a thread copies one chunk of all rows
    // that lie `row_step` apart. Written like this, all addresses are one and constants.
    static constexpr bool regular = threads % chunks == 0;
    static constexpr int row_step = threads / chunks;
    static __device__ __forceinline__ int row(int i) {
      const int thread = static_cast<int>(threadIdx.x);
      return regular ? thread / chunks + i * row_step : (thread + i * threads) / chunks;
    }
    static __device__ __forceinline__ int chunk(int i) {
      const int thread = static_cast<int>(threadIdx.x);
      return regular ? thread % chunks : (thread + i * threads) % chunks;
    }
    static __device__ __forceinline__ int target(int i) {
      constexpr bool same_turn = regular && row_step % (is_permuted ? group_columns : 8) == 0;
      return same_turn ? place<pitch, is_permuted>(row(0), chunk(0)) + i * row_step * pitch
                       : place<pitch, is_permuted>(row(i), chunk(i));
    }
    // Rows behind the last read the last one: what they give is never stored.
    static __device__ __forceinline__ const int8_t* source(const int8_t* operand, int first,
                                                           int i) {
      if (total % rows == 0 && regular) {
        const int8_t* begin =
            operand + static_cast<int64_t>(first + row(0)) * bytes + chunk(0) * 16;
        return begin + i * row_step * bytes;
      }
      int place = first + row(i);
      if (total % rows != 0 && place >= total) place = total - 1;
      return operand + static_cast<int64_t>(place) * bytes + chunk(i) * 16;
    }
    // Whether the chunk lies within the row; behind it are zeros.
    static __device__ __forceinline__ bool inside(int stage, int i) {
      return (bytes + 15) / 16 * 16 % pitch == 0 || stage * pitch + chunk(i) * 16 < bytes;
    }
    static __device__ __forceinline__ uint4 load(const int8_t* operand, int first, int stage,
                                                 int i) {
      if (!inside(stage, i)) return make_uint4(0, 0, 0, 0);
      const int8_t* from = source(operand, first, i) + stage * pitch;
      if (aligned) return *reinterpret_cast<const uint4*>(from);
      // Rows that are no multiple of 16 bytes long begin anywhere.
      constexpr int width = bytes % 8 == 0 ? 8 : bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1;
      const int place = stage * pitch + chunk(i) * 16;
      int8_t part[16] = {};
#pragma unroll
      for (int j = 0; j < 16; j += width) {
        if (place + j < bytes) copy_bytes<width>(part + j, from + j);
      }
      return make_uint4(pack4(part[0], part[1], part[2], part[3]),
                        pack4(part[4], part[5], part[6], part[7]),
                        pack4(part[8], part[9], part[10], part[11]),
                        pack4(part[12], part[13], part[14], part[15]));
    }
    static __device__ __forceinline__ void copy(shared_t to, const int8_t* operand, int first,
                                                int stage) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (!exists(i)) continue;
        if (aligned) {
          copy16_async(to + target(i), source(operand, first, i) + stage * pitch, inside(stage, i));
        } else {
          store_shared16(to + target(i), load(operand, first, stage, i));
        }
      }
    }
    static __device__ __forceinline__ void fetch(uint4 (&values)[count], const int8_t* operand,
                                                 int first, int stage) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (exists(i)) values[i] = load(operand, first, stage, i);
      }
    }
    static __device__ __forceinline__ void keep(shared_t to, const uint4 (&values)[count]) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (exists(i)) store_shared16(to + target(i), values[i]);
      }
    }
  };
  typedef Share<block_rows, M, lhs_depth, stage_depth, false> Lhs;
  typedef Share<block_columns, N, rhs_bytes, rhs_pitch, direct> Rhs;

  // ---- From shared memory to registers ----------------------------------------------------------

  // Where W is in half bytes, a word of `b` has a depth of 32, and two scales.
  struct Fragments {
    uint32_t a[row_tiles][step_depth / 8];
    uint32_t b[column_tiles][halves ? 1 : step_depth / 16];
    uint32_t scales[column_tiles];
  };

  // What is multiplied, and where the tile begins.
  struct Operands {
    const int8_t* lhs;
    const int8_t* rhs;
    const uint8_t* scales;
    int row;
    int column;
  };

  // Which group of the depth this warp multiplies in a step.
  static __device__ __forceinline__ int group(int stage, int step) {
    return stage * (stage_depth / 32) + depth_part() * (warp_depth / 32) + step;
  }

  // Two scales of this lane's column of a tile; any where nothing is stored or A is 0.
  static __device__ __forceinline__ uint32_t load_scales(const Operands& of, int tile, int group) {
    int column = of.column + first_column() + permuted(tile, lane() / 4);
    if (N % block_columns != 0 && column >= N) column = N - 1;
    int pair = group / 2;
    if (K % stage_depth != 0 && pair >= scale_bytes) pair = scale_bytes - 1;
    return of.scales[static_cast<int64_t>(column) * scale_bytes + pair];
  }

  // Where this lane's rows lie in a stage for the first step; `which` is a step's, and its address
  // differs in the permuted chunk only, which is an exclusive or.
  static __device__ __forceinline__ int lhs_place() {
    const int l = lane();
    const int chunk = depth_part() * (warp_depth / 16);
    if (step_depth == 32) return place<stage_depth, false>(first_row() + l % 16, chunk + l / 16);
    return place<stage_depth, false>(first_row() + l % (row_tiles > 1 ? 32 : 16), chunk);
  }
  static __device__ __forceinline__ int rhs_place() {
    const int l = lane();
    const int chunk = depth_part() * (warp_depth * rhs_pitch / stage_depth / 16);
    const int operand = block_rows * stage_depth;
    if (step_depth == 32 && !halves) {
      const int row = first_column() + permuted(l / 16, l % 8);
      return operand + place<rhs_pitch, direct>(row, chunk + l / 8 % 2);
    }
    const int tile = l / 8 % (column_tiles > 2 ? 4 : 2);
    return operand + place<rhs_pitch, direct>(first_column() + permuted(tile, l % 8), chunk);
  }

  // Eight rows of 16 bytes each, from `row` on, four times by each instruction; a row has `pitch`.
  template <int pitch, int count, int width>
  static __device__ __forceinline__ void load_column(uint32_t (&to)[count][width], shared_t row) {
    static_assert(width == 1 || width == 2, "rows of 8 or of 16");
    constexpr int matrices = count * width;
#pragma unroll
    for (int i = 0; i + 4 <= matrices; i += 4) {
      uint32_t four[4];
      ldmatrix_x4(four, row + i * 8 * pitch);
#pragma unroll
      for (int j = 0; j < 4; ++j) to[(i + j) / width][(i + j) % width] = four[j];
    }
    if (matrices % 4 == 2) {
      constexpr int i = matrices / 4 * 4;
      // Lanes of the upper half are given rows of the lower one, which exist.
      const int back = count * width > 2 && lane() >= 16 ? 16 * pitch : 0;
      uint32_t two[2];
      ldmatrix_x2(two, row + i * 8 * pitch - back);
#pragma unroll
      for (int j = 0; j < 2; ++j) to[(i + j) / width][(i + j) % width] = two[j];
    }
  }

  static __device__ __forceinline__ void load_fragments(Fragments& to, const Operands& of,
                                                        shared_t lhs, shared_t rhs, int stage,
                                                        int step) {
    const int flip = step * step_depth;
    if constexpr (step_depth == 32) {
#pragma unroll
      for (int i = 0; i < row_tiles; ++i) {
        ldmatrix_x4(to.a[i], (lhs ^ flip) + i * 16 * stage_depth);
      }
    } else {
      load_column<stage_depth>(to.a, lhs ^ flip);
    }
    if constexpr (halves) {
      load_column<rhs_pitch>(to.b, rhs ^ flip / 2);
#pragma unroll
      for (int j = 0; j < column_tiles; ++j) {
        to.scales[j] = load_scales(of, j, group(stage, step));
      }
    } else if constexpr (step_depth == 32) {
#pragma unroll
      for (int j = 0; j < column_tiles; j += 2) {
        uint32_t four[4];
        ldmatrix_x4(four, (rhs ^ flip) + permuted(j, 0) * stage_depth);
        to.b[j][0] = four[0];
        to.b[j][1] = four[1];
        to.b[j + 1][0] = four[2];
        to.b[j + 1][1] = four[3];
      }
    } else {
      load_column<stage_depth>(to.b, rhs ^ flip);
    }
  }

  typedef int32_t Sums[row_tiles][column_tiles][4];

  static __device__ __forceinline__ void multiply_step(Sums& sums, const Fragments& from, int stage,
                                                       int step) {
    if constexpr (halves) {
      const int shift = group(stage, step) % 2 * 4;
#pragma unroll
      for (int j = 0; j < column_tiles; ++j) {
        uint32_t b[2];
        widen_halves(b, from.b[j][0], (from.scales[j] >> shift & 15) + 1);
#pragma unroll
        for (int i = 0; i < row_tiles; ++i) mma_16x8x32<int8_t>(sums[i][j], from.a[i], b);
      }
    } else {
#pragma unroll
      for (int i = 0; i < row_tiles; ++i) {
#pragma unroll
        for (int j = 0; j < column_tiles; ++j) {
          if constexpr (step_depth == 32) {
            mma_16x8x32<int8_t>(sums[i][j], from.a[i], from.b[j]);
          } else {
            mma_16x8x16<int8_t>(sums[i][j], from.a[i], from.b[j]);
          }
        }
      }
    }
  }

  // ---- The product ------------------------------------------------------------------------------

  // Sums of the tile whose first entry is (row, column). `to` has `accumulators` entries of each
  // thread; `shared` is aligned to 128 bytes and has shared_bytes; `scales` are of half bytes.
  static __device__ __forceinline__ void multiply(int32_t* to, void* shared, const int8_t* lhs,
                                                  const void* rhs, int row, int column,
                                                  const uint8_t* scales = nullptr) {
    const Operands of = {lhs, static_cast<const int8_t*>(rhs), scales, row, column};
    const shared_t base = shared_address(shared);
    const shared_t lhs_base = base + lhs_place();
    const shared_t rhs_base = base + rhs_place();
    Sums sums = {};
    if constexpr (async_copies) {
#pragma unroll
      for (int stage = 0; stage < stages - 1; ++stage) {
        if (stage < stage_count) copy_stage(base + stage * stage_bytes, of, stage);
        commit_copies();
      }
      run_async(sums, of, base, lhs_base, rhs_base);
    } else {
      run_through_registers(sums, of, base, lhs_base, rhs_base);
    }
#pragma unroll
    for (int i = 0; i < accumulators; ++i) {
      to[i] = sums[i / 4 / column_tiles][i / 4 % column_tiles][i % 4];
    }
  }

  static __device__ __forceinline__ void copy_stage(shared_t to, const Operands& of, int stage) {
    Lhs::copy(to, of.lhs, of.row, stage);
    Rhs::copy(to + block_rows * stage_depth, of.rhs, of.column, stage);
  }

  static __device__ __forceinline__ void run_async(Sums& sums, const Operands& of, shared_t base,
                                                   shared_t lhs_base, shared_t rhs_base) {
    int read = 0;                              // bytes from the base to the stage that is read
    int write = (stages - 1) * stage_bytes;    // and to the one that is copied next
    if constexpr (steps % 2 == 0) {
      Fragments fragments[2];
      wait_copies<stages - 2>();
      __syncthreads();
      load_fragments(fragments[0], of, lhs_base, rhs_base, 0, 0);
#pragma unroll 1
      for (int stage = 0; stage < stage_count; ++stage) {
#pragma unroll
        for (int step = 0; step < steps; ++step) {
          if (step == steps - 1) {
            wait_copies<stages - 2>();
            __syncthreads();
            read = read == (stages - 1) * stage_bytes ? 0 : read + stage_bytes;
          }
          if (step < steps - 1 || stage < stage_count - 1) {
            load_fragments(fragments[(step + 1) % 2], of, lhs_base + read, rhs_base + read,
                           stage + (step + 1) / steps, (step + 1) % steps);
          }
          // The stage that all warps have read is the next to be written.
          if (step == 0) {
            if (stage + stages - 1 < stage_count) copy_stage(base + write, of, stage + stages - 1);
            commit_copies();
            write = write == (stages - 1) * stage_bytes ? 0 : write + stage_bytes;
          }
          multiply_step(sums, fragments[step % 2], stage, step);
        }
      }
    } else {
#pragma unroll 1
      for (int stage = 0; stage < stage_count; ++stage) {
        wait_copies<stages - 2>();
        __syncthreads();
        Fragments fragments;
        load_fragments(fragments, of, lhs_base + read, rhs_base + read, stage, 0);
        if (stage + stages - 1 < stage_count) copy_stage(base + write, of, stage + stages - 1);
        commit_copies();
        multiply_step(sums, fragments, stage, 0);
#pragma unroll
        for (int step = 1; step < steps; ++step) {
          load_fragments(fragments, of, lhs_base + read, rhs_base + read, stage, step);
          multiply_step(sums, fragments, stage, step);
        }
        read = read == (stages - 1) * stage_bytes ? 0 : read + stage_bytes;
        write = write == (stages - 1) * stage_bytes ? 0 : write + stage_bytes;
      }
    }
    wait_copies<0>();
  }

  static __device__ __forceinline__ void run_through_registers(Sums& sums, const Operands& of,
                                                               shared_t base, shared_t lhs_base,
                                                               shared_t rhs_base) {
    static_assert(async_copies || stages == 2, "two stages");
    // Fragments are loaded a step ahead, of which two places need an even number.
    constexpr bool ahead = steps % 2 == 0;
    uint4 next_lhs[Lhs::count];
    uint4 next_rhs[Rhs::count];
    Lhs::fetch(next_lhs, of.lhs, of.row, 0);
    Rhs::fetch(next_rhs, of.rhs, of.column, 0);
    Lhs::keep(base, next_lhs);
    Rhs::keep(base + block_rows * stage_depth, next_rhs);
    __syncthreads();
    Fragments fragments[2];
    if (ahead) load_fragments(fragments[0], of, lhs_base, rhs_base, 0, 0);
    int read = 0;
#pragma unroll 1
    for (int stage = 0; stage < stage_count; ++stage) {
      const bool more = stage + 1 < stage_count;
      if (more) {
        Lhs::fetch(next_lhs, of.lhs, of.row, stage + 1);
        Rhs::fetch(next_rhs, of.rhs, of.column, stage + 1);
      }
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        if (!ahead) {
          load_fragments(fragments[step % 2], of, lhs_base + read, rhs_base + read, stage, step);
        }
        if (step == steps - 1) {
          read = stage_bytes - read;
          if (more) {
            Lhs::keep(base + read, next_lhs);
            Rhs::keep(base + read + block_rows * stage_depth, next_rhs);
          }
          __syncthreads();
        }
        if (ahead && (step < steps - 1 || more)) {
          load_fragments(fragments[(step + 1) % 2], of, lhs_base + read, rhs_base + read,
                         stage + (step + 1) / steps, (step + 1) % steps);
        }
        multiply_step(sums, fragments[step % 2], stage, step);
      }
    }
  }

  // ---- From the instruction's order to that of memory -------------------------------------------

  // Sums of a lane where no other warp has a part of them: `parts` parts of its columns, each `run`
  // neighbouring ones, in `rows` rows. Entry x of part p in row r is sums[index(p, r, x)].
  template <int run>
  struct Direct {
    static constexpr int parts = column_tiles * 2 / run;
    static constexpr int rows = row_tiles * 2;
    static_assert(direct && run_columns % run == 0, "a run does not cross those of a lane");

    // Row in the block's tile, and which run of its columns a part is.
    static __device__ __forceinline__ int row(int r) {
      return first_row() + r * 8 + static_cast<int>(threadIdx.x % 32 / 4);
    }
    static __device__ __forceinline__ int number(int part) {
      constexpr int split = run_columns / run;
      return (first_column() + part / split * group_columns) / run +
             static_cast<int>(threadIdx.x % 4) * split + part % split;
    }
  };

  // Word of column `column` of a staged row. Neighbouring chunks of 16 bytes change places in some
  // rows and columns, so that lanes that read runs of 4 or 8 columns, of a row or of several, meet
  // different banks; writing stays free of conflicts. Without signs divisions are shifts.
  static __device__ __forceinline__ unsigned staged(unsigned row, unsigned column) {
    const unsigned turn = (column / 32 ^ row ^ row / 2) & 1;
    return row * pitch + (column & ~4u) + ((column / 4 & 1) ^ turn) * 4;
  }

  // Put rows 16 * piece .. + 15 of every warp's tile into shared memory, from `sums` as `multiply`
  // left them. All threads of the block call this for every piece, in order; behind it all warps
  // that share a tile see them.
  static __device__ __forceinline__ void stage(const int32_t* sums, void* shared, int piece) {
    int32_t* region = static_cast<int32_t*>(shared) + warp() * piece_words;
    if (piece == 0 || warp_depths > 1) {
      __syncthreads();
    } else {
      __syncwarp();
    }
    const unsigned row = threadIdx.x % 32 / 4;
    const unsigned column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < column_tiles; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t* pair = sums + (piece * column_tiles + j) * 4 + half * 2;
        uint2 value;
        value.x = static_cast<uint32_t>(pair[0]);
        value.y = static_cast<uint32_t>(pair[1]);
        *reinterpret_cast<uint2*>(region + staged(row + 8 * half, column + 8 * j)) = value;
      }
    }
    if (warp_depths > 1) {
      __syncthreads();
    } else {
      __syncwarp();
    }
  }

  // How a piece is read: by runs of `run` columns, each thread of those that share a tile `parts`
  // of them.
  template <int run>
  struct Runs {
    static constexpr unsigned readers = 32 * warp_depths;
    static constexpr unsigned per_row = warp_columns / run;
    static constexpr unsigned parts = piece_rows * per_row / readers;
    // Whether the runs of a thread all have the same columns.
    static constexpr bool steady = readers % per_row == 0;
    static_assert(warp_columns % run == 0 && parts * readers == piece_rows * per_row,
                  "whole parts");

    static __device__ __forceinline__ unsigned reader() {
      return threadIdx.x / 32 / tile_warps * 32 + threadIdx.x % 32;
    }
    static __device__ __forceinline__ unsigned piece_row(unsigned part) {
      return steady ? part * (readers / per_row) + reader() / per_row
                    : (part * readers + reader()) / per_row;
    }
    static __device__ __forceinline__ unsigned piece_run(unsigned part) {
      return (steady ? reader() : part * readers + reader()) % per_row;
    }
    // Row of a run in the block's tile, and which run of its columns it is.
    static __device__ __forceinline__ int row(int piece, int part) {
      return first_row() + piece * piece_rows + static_cast<int>(piece_row(part));
    }
    static __device__ __forceinline__ int number(int part) {
      return first_column() / run + static_cast<int>(piece_run(part));
    }

    // Sums of a run, of all warps that share the tile.
    static __device__ __forceinline__ void read(int32_t* to, const void* shared, int part) {
      const int32_t* region =
          static_cast<const int32_t*>(shared) + warp() % tile_warps * piece_words;
      const unsigned first = piece_run(part) * run;
      constexpr int width = run < 4 ? run : 4;
#pragma unroll
      for (int j = 0; j < run; j += width) {
        const int32_t* from = region + staged(piece_row(part), first + j);
        copy_bytes<4 * width>(to + j, from);
#pragma unroll
        for (int other = 1; other < warp_depths; ++other) {
          int32_t more[width];
          copy_bytes<4 * width>(more, from + other * tile_warps * piece_words);
#pragma unroll
          for (int i = 0; i < width; ++i) {
            to[j + i] = static_cast<int32_t>(static_cast<uint32_t>(to[j + i]) +
                                             static_cast<uint32_t>(more[i]));
          }
        }
      }
    }
  };
};

}  // namespace ibert
