// CUDA's built-ins for a kernel that g++ compiles and that runs on the CPU: what TVM's generated
// source and the device headers of targets/cuda use, and no more, so that what they newly use is
// noticed here.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "execution.h"

#ifndef __CUDA_ARCH__
#error "__CUDA_ARCH__ must say for which architecture a kernel is compiled: 750, 800 or 900"
#endif

#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static const
// `__global__`, `__launch_bounds__` and `__shared__` are replaced in the preprocessed text
// (tests/cuda/kernel_image.py): what they say of a kernel goes to its image's table.

#define threadIdx (on_host_state.current->index)
#define blockIdx (on_host_state.block)
#define blockDim (on_host_state.block_dim)
#define gridDim (on_host_state.grid_dim)
#define warpSize 32

// Not those of <algorithm>, which would take most of the time that a kernel takes to compile.
template <typename T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
template <typename T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}

// Vectors, aligned as on the device (CUDA C++ Programming Guide, "Built-in vector types").
#define ON_HOST_VECTORS(type, name)                                     \
  struct name##1 { type x; };                                           \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; };              \
  struct name##3 { type x, y, z; };                                     \
  struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; };        \
  inline name##1 make_##name##1(type x) { return {x}; }                 \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }      \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
ON_HOST_VECTORS(signed char, char)
ON_HOST_VECTORS(unsigned char, uchar)
ON_HOST_VECTORS(short, short)
ON_HOST_VECTORS(unsigned short, ushort)
ON_HOST_VECTORS(int, int)
ON_HOST_VECTORS(unsigned int, uint)
#undef ON_HOST_VECTORS
struct alignas(16) longlong2 { long long x, y; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
struct longlong4 { long long x, y, z, w; };
struct ulonglong4 { unsigned long long x, y, z, w; };
inline longlong2 make_longlong2(long long x, long long y) { return {x, y}; }
inline ulonglong2 make_ulonglong2(unsigned long long x, unsigned long long y) { return {x, y}; }
inline longlong4 make_longlong4(long long x, long long y, long long z, long long w) {
  return {x, y, z, w};
}

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace on_host {

// A __shared__ variable: one per block, taken from the block's memory by the first thread that
// comes to its declaration.
template <typename T>
struct Shared {
  uint64_t block_number = 0;
  T* memory = nullptr;

  T& get(size_t alignment) {
    if (block_number != on_host_state.block_number) {
      memory = static_cast<T*>(on_host_shared(sizeof(T), max(alignment, alignof(T))));
      block_number = on_host_state.block_number;
    }
    return *memory;
  }
};

inline unsigned lane() { return on_host_state.current->lane; }
inline Registers& registers() { return on_host_state.current->warp->registers; }

template <typename T>
void deposit(unsigned row, T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "registers are of 32 bits");
  uint32_t words[sizeof(T) / 4];
  std::memcpy(words, &value, sizeof(T));
  for (unsigned i = 0; i < sizeof(T) / 4; ++i) registers().value[row + i][lane()] = words[i];
}

template <typename T>
T withdraw(unsigned row) {
  uint32_t words[sizeof(T) / 4];
  for (unsigned i = 0; i < sizeof(T) / 4; ++i) words[i] = registers().value[row + i][lane()];
  T value;
  std::memcpy(&value, words, sizeof(T));
  return value;
}

// Registers 0 and 1: the value; 2: the lane to take it from; 3: whether that lane takes part.
template <typename T>
T shuffle(uint32_t mask, T value, unsigned from, const char* operation, unsigned line) {
  deposit(0, value);
  deposit(2, from);
  deposit(3, mask);
  on_host_collective(mask, operation, line, false, on_host_shuffle);
  return withdraw<T>(0);
}

// The lane of a shuffle: `from` where it is in the segment of `width` lanes, else the own one
// (PTX ISA, "shfl.sync").
inline unsigned clamped(int from, int first, int last) {
  return from < first || from > last ? lane() : static_cast<unsigned>(from);
}

inline int segment_first(int width) { return static_cast<int>(lane()) & ~(width - 1); }

}  // namespace on_host

// ---- Synchronisation ----------------------------------------------------------------------------

inline void __syncthreads(unsigned line = __builtin_LINE()) { on_host_barrier(line); }

inline void __syncwarp(unsigned mask = on_host::kFullMask, unsigned line = __builtin_LINE()) {
  on_host_collective(mask, "__syncwarp", line, false, [](on_host::Registers&) {});
}

inline void __threadfence_block() {}
inline void __threadfence() {}

// ---- Exchange between the lanes of a warp -------------------------------------------------------

template <typename T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32,
              unsigned line = __builtin_LINE()) {
  const int first = on_host::segment_first(width);
  return on_host::shuffle(mask, value, first + (from & (width - 1)), "__shfl_sync", line);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  unsigned line = __builtin_LINE()) {
  const int first = on_host::segment_first(width);
  // Unlike the others it may read from a segment before its own.
  const unsigned from =
      on_host::clamped(static_cast<int>(on_host::lane()) ^ lanes, 0, first + width - 1);
  return on_host::shuffle(mask, value, from, "__shfl_xor_sync", line);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   unsigned line = __builtin_LINE()) {
  const int first = on_host::segment_first(width);
  const unsigned from = on_host::clamped(static_cast<int>(on_host::lane() + delta), first,
                                         first + width - 1);
  return on_host::shuffle(mask, value, from, "__shfl_down_sync", line);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 unsigned line = __builtin_LINE()) {
  const int first = on_host::segment_first(width);
  const unsigned from = on_host::clamped(static_cast<int>(on_host::lane()) -
                                             static_cast<int>(delta), first, first + width - 1);
  return on_host::shuffle(mask, value, from, "__shfl_up_sync", line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, unsigned line = __builtin_LINE()) {
  on_host::deposit(0, predicate);
  on_host::deposit(1, mask);
  on_host_collective(mask, "vote", line, false, on_host_ballot);
  return on_host::withdraw<unsigned>(0);
}

inline int __any_sync(unsigned mask, int predicate, unsigned line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, line) != 0;
}

inline int __all_sync(unsigned mask, int predicate, unsigned line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate == 0, line) == 0;
}

#if __CUDA_ARCH__ >= 800
// Sum, in unsigned arithmetic, over the lanes of the mask (PTX ISA, "redux.sync").
template <typename T>
T __reduce_add_sync(unsigned mask, T value, unsigned line = __builtin_LINE()) {
  static_assert(sizeof(T) == 4, "int or unsigned");
  on_host::deposit(0, value);
  on_host::deposit(1, mask);
  on_host_collective(mask, "__reduce_add_sync", line, false, on_host_reduce_add);
  return on_host::withdraw<T>(0);
}
#endif

inline unsigned __activemask() { return on_host_state.current->warp->live; }

// ---- Arithmetic ---------------------------------------------------------------------------------

inline int __mulhi(int a, int b) {
  return static_cast<int>((static_cast<int64_t>(a) * b) >> 32);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline long long __mul64hi(long long a, long long b) {
  return static_cast<long long>((static_cast<__int128>(a) * b) >> 64);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32) | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((((static_cast<uint64_t>(high) << 32) | low) << (shift & 31)) >> 32);
}

// Four of the eight bytes of (y, x); with bit 3 of a selector the byte's sign (PTX ISA, "prmt").
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned selector = selectors >> (4 * i) & 0xf;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (selector & 7))) & 0xff;
    if (selector & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}

inline int __dp4a(int a, int b, int c) {
  uint32_t sum = static_cast<uint32_t>(c);
  for (int i = 0; i < 4; ++i) {
    const int product = static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
    sum += static_cast<uint32_t>(product);
  }
  return static_cast<int>(sum);
}

template <typename T>
T __ldg(const T* address) {
  return *address;
}

// One thread runs at a time, so that any access is atomic; none is part of a race.
template <typename T>
__attribute__((no_sanitize("thread"))) T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}
template <typename T>
__attribute__((no_sanitize("thread"))) T atomicMax(T* address, T value) {
  const T old = *address;
  *address = max(old, value);
  return old;
}

inline size_t __cvta_generic_to_shared(const void* pointer) {
  return reinterpret_cast<size_t>(pointer);
}
