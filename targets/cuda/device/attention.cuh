// Attention of one head for a tile of query rows, by one thread block. The softmax itself is not
// here: the rule (schedules/cuda/attention.py) puts the traced arithmetic between these steps.
//
//   load_queries, load_step      Q, and a step of keys and values, to shared memory
//   set_key, key                 what is known of a key (its offset, or whether it counts)
//   scores                       Q K^T in registers
//   over_keys                    maximum, or sum, of a row over the lanes and warps that have it
//   put_weights                  four weights of a row (bytes) to shared memory
//   weigh                        context += weights V, and the sum of each row's weights
//                                (of wide V, which has 16 bits, once for each of its two bytes)
//   put_results, store_results   four results of a row to shared memory; the tile to device memory
//
// Work of the warps. Warp (r, k) of rows x keys has rows 16 r .. and of every step the keys from
// `warp_keys` k on: scores, maximum, exponentials. For P V the warps of a row group share the
// head's columns instead, 16 at a time, so that no partial sums have to be added; weights go
// through shared memory.
//
// Entries of the warp's fragments (primitives.cuh has their layout; g = lane / 4, t = lane % 4):
//
//   scores[8 m + 4 h + 2 r + i]   row g + 8 r, key 16 m + 8 h + 2 t + i of the warp's keys
//   context[8 c + 4 r + i]        row g + 8 r, column 16 (k + warps c) + 4 t + i of the head; those
//                                of the low parts of wide V follow behind all of the high parts
//
// Weights are stored in the order in which a lane has them: bytes 4 t .. 4 t + 3 of 16 keys are the
// keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9. That is also the order in which V comes without transposing
// it in memory: ldmatrix with .trans gives lane (g, t) of 8 keys x 16 columns the entries of keys
// 2 t and 2 t + 1 in columns 2 g and 2 g + 1, and a byte permutation of two such registers is one
// register of a B fragment: even columns in one, odd columns in another. A lane of the context then
// has columns 4 t .. 4 t + 3 of 16, from the even and the odd product in turn.
//
// Shared memory. Tiles of bytes have rows of a power of two of at least 16 bytes, and in rows that
// ldmatrix reads together, 16 bytes of one column lie in different banks (`place`).
#pragma once

#include "primitives.cuh"

namespace ibert {

constexpr int warp_lanes = 32;
constexpr int chunk = 16;       // bytes that one thread copies, and rows of a product
constexpr int bank_bytes = 128;  // of all banks together

constexpr __host__ __device__ int round_up(int x, int to) { return (x + to - 1) / to * to; }

constexpr __host__ __device__ int power_of_two_from(int x) {
  int power = chunk;
  while (power < x) power *= 2;
  return power;
}

constexpr __host__ __device__ int most(int x, int y) { return x < y ? y : x; }

// Memory of a block. One array, whose parts the templates below place.
template <int bytes>
__device__ __forceinline__ uint8_t* block_memory() {
  __shared__ __align__(128) uint8_t memory[bytes];
  return memory;
}

// A tile of bytes in shared memory with rows of `pitch` bytes, a power of two. Places are computed
// with unsigned numbers: a division of a signed one by a power of two takes four instructions.
template <unsigned pitch>
struct ByteTile {
  static constexpr unsigned columns = pitch / chunk;
  static constexpr unsigned rows_per_bank_line = pitch < bank_bytes ? bank_bytes / pitch : 1;

  // Where 16 bytes of a row lie: eight rows that follow each other have theirs in eight different
  // groups of banks.
  static __device__ __forceinline__ unsigned place(unsigned row, unsigned column) {
    return row * pitch + ((column ^ (row / rows_per_bank_line % 8 % columns)) * chunk);
  }
};

// Sizes.
//   row_groups, key_groups   warps along rows and along keys
//   head_dim                 channels of a head
//   step_keys                keys of a step, a multiple of 32 and of 16 key_groups
//   unit                     bytes to which rows of Q, K and V are aligned, a power of two up to 16
//   result_bytes             of one result: 1, 2 or 4
//   result_unit              bytes to which rows of the result are aligned, likewise
//   value_tile               whether V has memory of its own; otherwise it takes that of K
//   low_bits                 of wide V, bits of its low part; 0 where V has 8 bits
template <int row_groups_, int key_groups_, int head_dim_, int step_keys_, int unit_,
          int result_bytes_, int result_unit_, bool value_tile_, int low_bits_>
struct Attention {
  static constexpr int row_groups = row_groups_;
  static constexpr int key_groups = key_groups_;
  static constexpr int head_dim = head_dim_;
  static constexpr int step_keys = step_keys_;
  static constexpr int unit = unit_;
  static constexpr int result_bytes = result_bytes_;
  static constexpr int result_unit = result_unit_;
  static constexpr bool value_tile = value_tile_;
  static constexpr int low_bits = low_bits_;
  static constexpr int value_parts = low_bits ? 2 : 1;

  static constexpr int threads = warp_lanes * row_groups * key_groups;
  static constexpr int rows = 16 * row_groups;
  static constexpr int warp_keys = step_keys / key_groups;
  static constexpr int depth = round_up(head_dim, chunk);  // of Q K^T, zero behind the head
  static constexpr int column_groups = depth / chunk;      // of P V, 16 columns each
  static constexpr int warp_columns = (column_groups + key_groups - 1) / key_groups;
  static constexpr int head_pitch = power_of_two_from(depth);
  static constexpr int key_pitch = power_of_two_from(step_keys);
  // An odd number of 16 bytes: results of eight rows lie in different banks.
  static constexpr int result_row = depth * result_bytes;
  static constexpr int result_pitch = result_row / chunk % 2 ? result_row : result_row + chunk;

  static_assert(step_keys % 32 == 0 && warp_keys % 16 == 0, "whole fragments of keys");
  static_assert(head_dim * result_bytes % result_unit == 0 && head_dim % unit == 0, "alignment");

  using Heads = ByteTile<head_pitch>;
  using Weights = ByteTile<key_pitch>;

  // Parts of the block's memory.
  static constexpr int queries_at = 0;
  static constexpr int keys_at = queries_at + rows * head_pitch;
  static constexpr int tile_bytes = step_keys * head_pitch;
  static constexpr int values_at = value_tile ? keys_at + tile_bytes : keys_at;
  static constexpr int weights_at = values_at + value_parts * tile_bytes;
  static constexpr int key_infos_at = weights_at + rows * key_pitch;
  static constexpr int exchange_at = key_infos_at + step_keys * 4;
  static constexpr int used_bytes = exchange_at + key_groups * rows * 4;
  static constexpr int bytes = most(used_bytes, rows * result_pitch);

  static __device__ __forceinline__ uint8_t* memory() { return block_memory<bytes>(); }
  static __device__ __forceinline__ unsigned lane() { return threadIdx.x % warp_lanes; }
  static __device__ __forceinline__ unsigned row_group() {
    return threadIdx.x / warp_lanes % row_groups;
  }
  static __device__ __forceinline__ unsigned key_group() {
    return threadIdx.x / warp_lanes / row_groups;
  }

  // ---- Copies to shared memory ------------------------------------------------------------------

  // 16 of a row's `row_bytes` bytes from one of them on, zeros behind the row or if it is not valid.
  template <unsigned row_bytes>
  static __device__ __forceinline__ uint4 fetch16(const int8_t* from, unsigned first, bool valid) {
    uint4 value = make_uint4(0, 0, 0, 0);
    if (!valid) return value;
    if (unit == chunk) return *reinterpret_cast<const uint4*>(from + first);
    __align__(16) uint8_t part[chunk] = {};
#pragma unroll
    for (unsigned byte = 0; byte < chunk; byte += unit) {
      if (first + byte < row_bytes) copy_bytes<unit>(part + byte, from + first + byte);
    }
    copy_bytes<chunk>(&value, part);
    return value;
  }

  // Copy `tile_rows` rows of a head to a tile, with zeros for rows from `valid` on and for columns
  // behind the head. Where copies are not asynchronous, all bytes are fetched before any is stored.
  template <int tile_rows>
  struct Copy {
    static constexpr int chunks = tile_rows * column_groups;
    static constexpr int turns = (chunks + threads - 1) / threads;
    static constexpr bool async = async_copies && unit == chunk;
    uint4 held[async ? 1 : turns];

    // Row and column of what a thread copies in a turn: where it can be, the same column each time.
    static __device__ __forceinline__ unsigned row(int turn) {
      if (threads % column_groups == 0) {
        return threadIdx.x / column_groups + turn * (threads / column_groups);
      }
      return (turn * threads + threadIdx.x) / column_groups;
    }
    static __device__ __forceinline__ unsigned column(int turn) {
      const unsigned index = threads % column_groups ? turn * threads + threadIdx.x : threadIdx.x;
      return index % column_groups;
    }
    static __device__ __forceinline__ bool inside(int turn) {
      return (turn + 1) * threads <= chunks || turn * threads + threadIdx.x < chunks;
    }

    __device__ __forceinline__ void fetch(shared_t tile, const int8_t* from, int stride,
                                          int valid) {
#pragma unroll
      for (int turn = 0; turn < turns; ++turn) {
        const int8_t* place = from + static_cast<int64_t>(row(turn)) * stride;
        const bool exists = row(turn) < static_cast<unsigned>(valid);
        if (async) {
          if (inside(turn)) {
            copy16_async(tile + Heads::place(row(turn), column(turn)), place + column(turn) * chunk,
                         exists);
          }
        } else {
          const unsigned first = column(turn) * chunk;
          held[async ? 0 : turn] = fetch16<head_dim>(place, first, exists && inside(turn));
        }
      }
    }

    __device__ __forceinline__ void put(shared_t tile) {
      if (async) return;
#pragma unroll
      for (int turn = 0; turn < turns; ++turn) {
        if (inside(turn)) {
          store_shared16(tile + Heads::place(row(turn), column(turn)), held[async ? 0 : turn]);
        }
      }
    }
  };

  // `from` points to the first channel of the head in the tile's first row; rows lie `stride` bytes
  // apart, and `valid` of them exist.
  static __device__ __forceinline__ void load_queries(const int8_t* from, int stride, int valid) {
    const shared_t tile = shared_address(memory() + queries_at);
    Copy<rows> copy;
    copy.fetch(tile, from, stride, valid);
    copy.put(tile);
  }

  // Keys or values of a step, as a group of copies.
  static __device__ __forceinline__ void load_keys(const int8_t* from, int stride, int valid) {
    const shared_t tile = shared_address(memory() + keys_at);
    Copy<step_keys> copy;
    copy.fetch(tile, from, stride, valid);
    copy.put(tile);
    commit_copies();
  }

  // Wide V goes through registers, where its bytes are told apart: a tile of each.
  struct CopyParts {
    static constexpr int row_bytes = 2 * chunk;
    uint4 held[2 * Copy<step_keys>::turns];

    static __device__ __forceinline__ uint32_t high4(uint32_t x, uint32_t y) {
      return __byte_perm(x >> low_bits, y >> low_bits, 0x6420);
    }
    static __device__ __forceinline__ uint32_t low4(uint32_t x, uint32_t y) {
      constexpr uint32_t mask = ((1u << low_bits) - 1) * 0x10001u;
      return __byte_perm(x & mask, y & mask, 0x6420);
    }

    __device__ __forceinline__ void fetch(shared_t, const int16_t* from, int stride, int valid) {
      using Turn = Copy<step_keys>;
#pragma unroll
      for (int turn = 0; turn < Turn::turns; ++turn) {
        const int8_t* place = reinterpret_cast<const int8_t*>(from) +
                              static_cast<int64_t>(Turn::row(turn)) * stride;
        const bool exists = Turn::row(turn) < static_cast<unsigned>(valid) && Turn::inside(turn);
        const unsigned column = Turn::column(turn) * row_bytes;
        held[2 * turn] = fetch16<2 * head_dim>(place, column, exists);
        held[2 * turn + 1] = fetch16<2 * head_dim>(place, column + chunk, exists);
      }
    }

    __device__ __forceinline__ void put(shared_t tile) {
      using Turn = Copy<step_keys>;
#pragma unroll
      for (int turn = 0; turn < Turn::turns; ++turn) {
        if (!Turn::inside(turn)) continue;
        const uint4 x = held[2 * turn], y = held[2 * turn + 1];
        const unsigned at = Heads::place(Turn::row(turn), Turn::column(turn));
        store_shared16(tile + at, make_uint4(high4(x.x, x.y), high4(x.z, x.w), high4(y.x, y.y),
                                             high4(y.z, y.w)));
        store_shared16(tile + tile_bytes + at, make_uint4(low4(x.x, x.y), low4(x.z, x.w),
                                                          low4(y.x, y.y), low4(y.z, y.w)));
      }
    }
  };

  template <bool wide, typename = void>
  struct CopyValues : Copy<step_keys> {};
  template <typename Unused>
  struct CopyValues<true, Unused> : CopyParts {};

  template <typename T>
  static __device__ __forceinline__ void load_values(const T* from, int stride, int valid) {
    const shared_t tile = shared_address(memory() + values_at);
    CopyValues<(low_bits > 0)> copy;
    copy.fetch(tile, from, stride, valid);
    copy.put(tile);
    commit_copies();
  }

  // Both, fetched together, as two groups.
  template <typename T>
  static __device__ __forceinline__ void load_step(const int8_t* keys, int key_stride,
                                                   const T* values, int value_stride, int valid) {
    const shared_t key_tile = shared_address(memory() + keys_at);
    const shared_t value_tile_address = shared_address(memory() + values_at);
    Copy<step_keys> key_copy;
    CopyValues<(low_bits > 0)> value_copy;
    key_copy.fetch(key_tile, keys, key_stride, valid);
    commit_copies();
    value_copy.fetch(value_tile_address, values, value_stride, valid);
    commit_copies();
    key_copy.put(key_tile);
    value_copy.put(value_tile_address);
  }

  // Until all threads see what was copied, but for the last `pending` groups.
  template <int pending>
  static __device__ __forceinline__ void arrive() {
    wait_copies<pending>();
    __syncthreads();
  }

  static __device__ __forceinline__ void meet() { __syncthreads(); }

  // ---- Keys -------------------------------------------------------------------------------------

  static __device__ __forceinline__ int32_t* key_infos() {
    return reinterpret_cast<int32_t*>(memory() + key_infos_at);
  }

  // `key` counts from the first one of the step.
  static __device__ __forceinline__ void set_key(int key, int32_t info) { key_infos()[key] = info; }
  static __device__ __forceinline__ int32_t key(int key) { return key_infos()[key]; }

  // ---- Q K^T ------------------------------------------------------------------------------------

  // Scores of the warp's rows and keys. They start from what is known of each key if `from_keys`,
  // else from 0.
  template <bool from_keys>
  static __device__ __forceinline__ void scores(int32_t* scores) {
    const shared_t query_tile = shared_address(memory() + queries_at);
    const shared_t key_tile = shared_address(memory() + keys_at);
    const unsigned own = lane(), first_key = key_group() * warp_keys;
    const unsigned row = row_group() * 16 + own % 16;
    uint32_t a[depth / 32 + 1][4];
#pragma unroll
    for (int step = 0; step < depth / 32; ++step) {
      ldmatrix_x4(a[step], query_tile + Heads::place(row, 2 * step + own / 16));
    }
    uint32_t last[2];
    if (depth % 32) ldmatrix_x2(last, query_tile + Heads::place(row, depth / chunk - 1));
#pragma unroll
    for (int m = 0; m < warp_keys / 16; ++m) {
      int32_t c[2][4];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        int2 start = make_int2(0, 0);
        if (from_keys) {
          const unsigned at = first_key + 16 * m + 8 * h + 2 * (own % 4);
          start = *reinterpret_cast<const int2*>(key_infos() + at);
        }
        c[h][0] = c[h][2] = start.x;
        c[h][1] = c[h][3] = start.y;
      }
      const unsigned key = first_key + 16 * m + own % 8;
#pragma unroll
      for (int step = 0; step < depth / 32; ++step) {
        uint32_t b[4];
        ldmatrix_x4(b, key_tile + Heads::place(key + own / 16 * 8, 2 * step + own / 8 % 2));
        const uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
        mma_16x8x32<int8_t>(c[0], a[step], first);
        mma_16x8x32<int8_t>(c[1], a[step], second);
      }
      if (depth % 32) {
        uint32_t b[2];
        ldmatrix_x2(b, key_tile + Heads::place(key + own / 8 % 2 * 8, depth / chunk - 1));
        const uint32_t first[1] = {b[0]}, second[1] = {b[1]};
        mma_16x8x16<int8_t>(c[0], last, first);
        mma_16x8x16<int8_t>(c[1], last, second);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) scores[8 * m + i] = c[i / 4][i % 4];
    }
  }

  // ---- Rows -------------------------------------------------------------------------------------

  static __device__ __forceinline__ int32_t combine(int32_t x, int32_t y, bool largest) {
    return largest ? most(x, y) : x + y;
  }

  // Of both rows of a lane (g and g + 8), what all lanes and warps have of it: the largest, or the
  // sum. All threads of the block take part.
  template <bool largest>
  static __device__ __forceinline__ void over_keys(int32_t* of_rows) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      of_rows[r] = largest ? max_lanes<4>(of_rows[r]) : sum_lanes<4>(of_rows[r]);
    }
    if (key_groups == 1) return;
    int32_t* exchange = reinterpret_cast<int32_t*>(memory() + exchange_at);
    const unsigned row = row_group() * 16 + lane() / 4;
    __syncthreads();  // what was exchanged before has been read
    if (lane() % 4 == 0) {
      exchange[key_group() * rows + row] = of_rows[0];
      exchange[key_group() * rows + row + 8] = of_rows[1];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int32_t value = exchange[row + 8 * r];
#pragma unroll
      for (int group = 1; group < key_groups; ++group) {
        value = combine(value, exchange[group * rows + row + 8 * r], largest);
      }
      of_rows[r] = value;
    }
  }

  // Work on rows is shared: lanes with an odd number do that of the second row of a pair.
  static __device__ __forceinline__ int32_t own_row(int32_t first, int32_t second) {
    return lane() % 2 ? second : first;
  }

  template <typename T>
  static __device__ __forceinline__ void both_rows(T own, T* of_rows) {
    const T other = __shfl_xor_sync(all_lanes, own, 1);
    of_rows[0] = lane() % 2 ? other : own;
    of_rows[1] = lane() % 2 ? own : other;
  }

  // ---- P V --------------------------------------------------------------------------------------

  // Four numbers, shifted to the right, to bytes. The shifted ones are bytes, so that two of those
  // that are not have room in a register and are shifted together.
  template <int shift>
  static __device__ __forceinline__ uint32_t pack_shifted(const int32_t* x) {
    static_assert(shift <= 8, "sixteen bits hold a byte and what is shifted out");
    if (shift == 0) return pack4(x[0], x[1], x[2], x[3]);
    const uint32_t low = static_cast<uint32_t>(x[1]) * 0x10000 + x[0];
    const uint32_t high = static_cast<uint32_t>(x[3]) * 0x10000 + x[2];
    return __byte_perm(low >> shift, high >> shift, 0x6420);
  }

  // Weights of row g + 8 r and keys 16 m + 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of the warp's, 0 to 255
  // once they are shifted.
  template <int shift>
  static __device__ __forceinline__ void put_weights(int m, int r, const int32_t* weights) {
    const unsigned row = row_group() * 16 + lane() / 4 + 8 * r;
    const unsigned column = key_group() * (warp_keys / chunk) + m;
    uint8_t* place = memory() + weights_at + Weights::place(row, column) + 4 * (lane() % 4);
    *reinterpret_cast<uint32_t*>(place) = pack_shifted<shift>(weights);
  }

  static __device__ __forceinline__ void clear(int32_t* context, int32_t* sums) {
#pragma unroll
    for (int i = 0; i < 8 * warp_columns * value_parts; ++i) context[i] = 0;
    sums[0] = sums[1] = 0;
  }

  // context += weights V over the keys of a step; sums += the weights of both rows of the lane, by
  // a product with ones.
  static __device__ __forceinline__ void weigh(int32_t* context, int32_t* sums) {
    weigh_part<0>(context, sums);
    if (value_parts > 1) weigh_part<value_parts - 1>(context + 8 * warp_columns, sums);
  }

  template <int part>
  static __device__ __forceinline__ void weigh_part(int32_t* context, int32_t* sums) {
    const shared_t weight_tile = shared_address(memory() + weights_at);
    const shared_t value_tile_address = shared_address(memory() + values_at + part * tile_bytes);
    const unsigned own = lane();
    const unsigned row = row_group() * 16 + own % 16;
    int32_t c[warp_columns][2][4];
#pragma unroll
    for (int group = 0; group < warp_columns; ++group) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        // Entry i / 4 of the rows, column i % 4: of the even product and the odd one in turn.
        c[group][i % 2][i / 4 * 2 + i % 4 / 2] = context[8 * group + i];
      }
    }
    int32_t total[4] = {sums[0], sums[0], sums[1], sums[1]};
#pragma unroll
    for (int step = 0; step < step_keys / 32; ++step) {
      uint32_t a[4];
      ldmatrix_x4(a, weight_tile + Weights::place(row, 2 * step + own / 16));
      const uint32_t ones[2] = {0x01010101u, 0x01010101u};
      if (part == 0) mma_16x8x32<uint8_t>(total, a, ones);
#pragma unroll
      for (int group = 0; group < warp_columns; ++group) {
        const unsigned column = key_group() + key_groups * group;
        if (column_groups % key_groups && column >= column_groups) continue;
        uint32_t v[4];  // of 8 keys each
        ldmatrix_x4_trans(v, value_tile_address + Heads::place(32 * step + own, column));
        const uint32_t even[2] = {__byte_perm(v[0], v[1], 0x6420),
                                  __byte_perm(v[2], v[3], 0x6420)};
        const uint32_t odd[2] = {__byte_perm(v[0], v[1], 0x7531),
                                 __byte_perm(v[2], v[3], 0x7531)};
        mma_16x8x32<uint8_t>(c[group][0], a, even);
        mma_16x8x32<uint8_t>(c[group][1], a, odd);
      }
    }
    sums[0] = total[0];
    sums[1] = total[2];
#pragma unroll
    for (int group = 0; group < warp_columns; ++group) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        context[8 * group + i] = c[group][i % 2][i / 4 * 2 + i % 4 / 2];
      }
    }
  }

  // ---- Results ----------------------------------------------------------------------------------

  // Column of the head that entry 8 c + i of a lane's context belongs to.
  static __device__ __forceinline__ unsigned column(int c, int i) {
    return (key_group() + key_groups * c) * chunk + 4 * (lane() % 4) + i;
  }

  // The block's memory takes results from here on.
  static __device__ __forceinline__ void begin_results() { __syncthreads(); }

  // Results of row g + 8 r and columns column(c, 0) .. column(c, 3), saturated if they have 8 bits.
  template <typename T>
  static __device__ __forceinline__ void put_results(int c, int r, const int32_t* results) {
    static_assert(sizeof(T) == result_bytes, "results of another type");
    if (column_groups % key_groups && key_group() + key_groups * c >= column_groups) return;
    const unsigned row = row_group() * 16 + lane() / 4 + 8 * r;
    uint8_t* place = memory() + row * result_pitch + column(c, 0) * result_bytes;
    if (result_bytes == 1) {
      constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(0);
      *reinterpret_cast<uint32_t*>(place) =
          is_signed ? pack4_saturated(results[0], results[1], results[2], results[3])
                    : pack4_saturated_unsigned(results[0], results[1], results[2], results[3]);
    } else if (result_bytes == 2) {
      const uint32_t low = __byte_perm(results[0], results[1], 0x5410);
      const uint32_t high = __byte_perm(results[2], results[3], 0x5410);
      *reinterpret_cast<uint2*>(place) = make_uint2(low, high);
    } else {
      *reinterpret_cast<uint4*>(place) = make_uint4(results[0], results[1], results[2], results[3]);
    }
  }

  // Store `valid` rows of results, `stride` bytes apart, from the first one's first channel of the
  // head on.
  static __device__ __forceinline__ void store_results(void* to, int stride, int valid) {
    __syncthreads();
    constexpr unsigned pieces = head_dim * result_bytes / result_unit;
    uint8_t* first = static_cast<uint8_t*>(to);
#pragma unroll
    for (unsigned start = 0; start < rows * pieces; start += threads) {
      const unsigned index = start + threadIdx.x;
      const unsigned row = index / pieces, piece = index % pieces;
      if (row < static_cast<unsigned>(valid) && (rows * pieces % threads == 0 || row < rows)) {
        copy_bytes<result_unit>(first + static_cast<int64_t>(row) * stride + piece * result_unit,
                                memory() + row * result_pitch + piece * result_unit);
      }
    }
  }
};

}  // namespace ibert
