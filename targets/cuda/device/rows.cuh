// Row operations: sums and maxima over the threads of a row, functions of single numbers that TIR calls, and
// stores of numbers that were computed in 32 bits.
#pragma once

#include "primitives.cuh"

namespace ibert {

// ---- Sums ---------------------------------------------------------------------------------------

// The sum over the lanes of a warp, in each of them.
__device__ __forceinline__ int32_t warp_sum(int32_t x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(all_lanes, x);
#else
  return sum_lanes(x);
#endif
}

__device__ __forceinline__ int64_t warp_sum(int64_t x) {
#if __CUDA_ARCH__ >= 800
  // 32 lanes add 5 bits: parts of 27 bits are summed in 32. What leaves 64 bits, leaves the sum.
  constexpr int part_bits = 27;
  constexpr uint64_t part = (1u << part_bits) - 1;
  const uint64_t u = static_cast<uint64_t>(x);
  const uint64_t low = __reduce_add_sync(all_lanes, static_cast<uint32_t>(u & part));
  const uint64_t middle =
      __reduce_add_sync(all_lanes, static_cast<uint32_t>(u >> part_bits & part));
  const uint64_t high = __reduce_add_sync(all_lanes, static_cast<uint32_t>(u >> 2 * part_bits));
  return static_cast<int64_t>(low + (middle << part_bits) + (high << 2 * part_bits));
#else
  return sum_lanes(x);
#endif
}

// Sums over the threads of a row, which are one warp: each number becomes its sum, in every thread.
// Two at a time hide the time that each waits for other lanes.
template <typename T>
__device__ __forceinline__ void row_sum(T* x) {
  *x = warp_sum(*x);
}

template <typename T, typename U>
__device__ __forceinline__ void row_sum(T* x, U* y) {
#if __CUDA_ARCH__ >= 800
  *x = warp_sum(*x);
  *y = warp_sum(*y);
#else
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const T other_x = __shfl_xor_sync(all_lanes, *x, step);
    const U other_y = __shfl_xor_sync(all_lanes, *y, step);
    *x += other_x;
    *y += other_y;
  }
#endif
}

// The largest over the threads of a row, which are one warp.
__device__ __forceinline__ void row_max(int32_t* x) { *x = max_lanes(*x); }

// The same where a row has all `warps` warps of a block, which meet at a barrier. `scratch` is
// shared memory; nothing else uses its `warps` places for each sum, from number `slot` on.
template <int warps, typename T>
__device__ __forceinline__ T sum_of_warps(const int64_t* scratch) {
  int64_t total = 0;
#pragma unroll
  for (int warp = 0; warp < warps; ++warp) total += scratch[warp];
  return static_cast<T>(total);
}

template <int warps, int slot, typename T>
__device__ __forceinline__ void row_sum_of_warps(T* x, int64_t* scratch) {
  int64_t* place = scratch + slot * warps;
  row_sum(x);
  if (threadIdx.x % 32 == 0) place[threadIdx.x / 32] = *x;
  __syncthreads();
  *x = sum_of_warps<warps, T>(place);
}

template <int warps, int slot, typename T, typename U>
__device__ __forceinline__ void row_sum_of_warps(T* x, U* y, int64_t* scratch) {
  int64_t* place = scratch + slot * warps;
  row_sum(x, y);
  if (threadIdx.x % 32 == 0) {
    place[threadIdx.x / 32] = *x;
    place[warps + threadIdx.x / 32] = *y;
  }
  __syncthreads();
  *x = sum_of_warps<warps, T>(place);
  *y = sum_of_warps<warps, U>(place + warps);
}

template <int warps, int slot>
__device__ __forceinline__ void row_max_of_warps(int32_t* x, int64_t* scratch) {
  int64_t* place = scratch + slot * warps;
  row_max(x);
  if (threadIdx.x % 32 == 0) place[threadIdx.x / 32] = *x;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < warps; ++warp) {
    const int32_t other = static_cast<int32_t>(place[warp]);
    *x = other > *x ? other : *x;
  }
}

// Over the `warps` warps of a block (threadIdx.y), sums or maxima of what each lane holds, `count`
// numbers: each becomes that of all warps, in every warp. `scratch` is shared memory for a number of
// each thread and count; `again` says that it may have been used before.
template <int warps, int count, bool again, bool largest, typename T>
__device__ __forceinline__ void combine_warps_per_lane(T* x, T* scratch) {
  if (again) __syncthreads();
#pragma unroll
  for (int i = 0; i < count; ++i) {
    scratch[(threadIdx.y * count + i) * 32 + threadIdx.x] = x[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < count; ++i) {
    T total = scratch[i * 32 + threadIdx.x];
#pragma unroll
    for (int warp = 1; warp < warps; ++warp) {
      const T other = scratch[(warp * count + i) * 32 + threadIdx.x];
      total = largest ? (other > total ? other : total) : total + other;
    }
    x[i] = total;
  }
}

template <int warps, int count, bool again, typename T>
__device__ __forceinline__ void sum_of_warps_per_lane(T* x, T* scratch) {
  combine_warps_per_lane<warps, count, again, false>(x, scratch);
}

template <int warps, int count, bool again, typename T>
__device__ __forceinline__ void max_of_warps_per_lane(T* x, T* scratch) {
  combine_warps_per_lane<warps, count, again, true>(x, scratch);
}

// ---- Functions of single numbers ----------------------------------------------------------------

// floor(log2 n) of n > 0: TIR's `ibert_floor_log2`.
__device__ __forceinline__ int32_t floor_log2(int32_t n) { return 31 - __clz(n); }

// floor(sqrt(n)) of n from 0 to 2^62 - 1: TIR's `ibert_square_root`, in integer instructions only.
//
// n is shifted left by an even number of bits to m in [2^60, 2^62), x = m / 2^62 in [1/4, 1). A
// polynomial gives y = 1 / sqrt(x) within 1/41, two of Newton's steps y (3 - x y^2) / 2 within 2^-19.7;
// a step on the root itself, s + (m - s^2) y / 2, leaves an error below one unit, and a comparison
// none. Shifting back floors: floor(sqrt(m)) >> k = floor(sqrt(m / 4^k)).
__device__ __forceinline__ int32_t square_root(int64_t n) {
  constexpr uint32_t c0 = 2867797446u;  // 1/sqrt(x) = c0 - c1 x + c2 x^2, in units of 2^-30
  constexpr uint32_t c1 = 3527650430u;
  constexpr uint32_t c2 = 1759413618u;
  const int shift = (__clzll(n | 1) & ~1) - 2;
  const int64_t m = (n | (n == 0)) << shift;
  const uint32_t x = static_cast<uint32_t>(m >> 30);  // in units of 2^-32
  uint32_t y = c0 - __umulhi(x, c1 - __umulhi(x, c2));
#pragma unroll
  for (int step = 0; step < 2; ++step) {
    const uint32_t xyy = __umulhi(x, __umulhi(y, y) << 1);  // in units of 2^-29, about 1
    y = __umulhi(y, (3u << 29) - xyy << 1) << 1;
  }
  int64_t s = static_cast<int64_t>(static_cast<uint64_t>(x) * y >> 31);
  // The root is short by up to 2^11.2, and m by up to 2^43.2 of its square; y is less than 2^31.
  const int32_t rest = static_cast<int32_t>((m - s * s) >> 13);
  s += __mulhi(rest, static_cast<int32_t>(y)) >> 17;
  const int64_t left = m - s * s;
  int32_t root = static_cast<int32_t>(s);
  if (left < 0) --root;
  if (left > 2 * s) ++root;
  return n == 0 ? 0 : root >> shift / 2;
}

// floor(2^(15 + b) / n) of n > 0, b = floor(log2 n): TIR's `ibert_normalised_reciprocal`.
//
// With the divisor shifted left until its highest bit is set, to d, that is floor(2^46 / d). One of
// Newton's steps leaves a relative error below 2^-16.3, with which the quotient of 16 bits is at most
// one too small.
__device__ __forceinline__ int32_t normalised_reciprocal(int32_t n) {
  const uint32_t d = static_cast<uint32_t>(n) << __clz(n);
  uint32_t x = rough_reciprocal(d);  // a lower bound of 2^62 / d
  x += __umulhi(x, ((1u << 30) - 1 - __umulhi(d, x)) << 2);  // rounded down: it stays one
  const uint32_t q = x >> 16;
  // (q + 1) d <= 2^46
  const uint64_t next = static_cast<uint64_t>(q + 1) * d - 1;
  return static_cast<int32_t>(static_cast<uint32_t>(next >> 32) < 1u << 14 ? q + 1 : q);
}

// ---- Stores -------------------------------------------------------------------------------------

// `bytes / sizeof(T)` numbers, computed in 32 bits, to memory as T: int8_t and uint8_t saturate (the
// instruction that packs them does so), int16_t keeps the lower bits. `to` is aligned to `bytes`,
// which is 1, 2, 4, 8 or 16.
template <typename T>
struct Packed;

template <>
struct Packed<int8_t> {
  static constexpr int per_word = 4;
  static __device__ __forceinline__ uint32_t word(const int32_t* x, int count) {
    return pack4_saturated(x[0], count > 1 ? x[1] : 0, count > 2 ? x[2] : 0, count > 2 ? x[3] : 0);
  }
};

template <>
struct Packed<uint8_t> {
  static constexpr int per_word = 4;
  static __device__ __forceinline__ uint32_t word(const int32_t* x, int count) {
    return pack4_saturated_unsigned(x[0], count > 1 ? x[1] : 0, count > 2 ? x[2] : 0,
                                    count > 2 ? x[3] : 0);
  }
};

template <>
struct Packed<int16_t> {
  static constexpr int per_word = 2;
  static __device__ __forceinline__ uint32_t word(const int32_t* x, int count) {
    const uint32_t lower = static_cast<uint32_t>(x[0]) & 0xffff;
    return count > 1 ? lower | static_cast<uint32_t>(x[1]) << 16 : lower;
  }
};

template <typename T, int bytes>
__device__ __forceinline__ void store_packed(T* to, const int32_t* values) {
  constexpr int count = bytes / static_cast<int>(sizeof(T));
  constexpr int words = bytes < 4 ? 1 : bytes / 4;
  constexpr int per_word = Packed<T>::per_word;
  uint32_t packed[words];
#pragma unroll
  for (int i = 0; i < words; ++i) packed[i] = Packed<T>::word(values + i * per_word, count);
  if (bytes == 1) {
    *reinterpret_cast<uint8_t*>(to) = static_cast<uint8_t>(packed[0]);
  } else if (bytes == 2) {
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(packed[0]);
  } else {
    copy_bytes<bytes < 4 ? 4 : bytes>(to, packed);
  }
}

}  // namespace ibert
