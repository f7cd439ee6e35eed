// The primitives of targets/cuda/device/primitives.cuh for kernels that run on the CPU. The
// contract is at the top of that file; the meaning is the PTX ISA's, section by section:
// "Warp-level matrix instructions: ldmatrix", "Matrix fragments for mma.m8n8k16", "... m16n8k16",
// "... m16n8k32", "mma", "cp.async", "cp.async.commit_group", "cp.async.wait_group".
#pragma once

#include "built_ins.h"

namespace ibert {

typedef uintptr_t shared_t;

inline shared_t shared_address(const void* pointer) {
  return reinterpret_cast<shared_t>(pointer);
}

#if __CUDA_ARCH__ >= 800
constexpr bool async_copies = true;
#else
constexpr bool async_copies = false;
#endif

namespace on_host_detail {

template <int matrices, bool transposed>
inline void ldmatrix(uint32_t (&to)[matrices], shared_t row, unsigned line) {
  on_host::deposit(0, static_cast<uint64_t>(row));
  constexpr on_host::Execute execute =
      matrices == 1   ? (transposed ? on_host_ldmatrix_x1_trans : on_host_ldmatrix_x1)
      : matrices == 2 ? (transposed ? on_host_ldmatrix_x2_trans : on_host_ldmatrix_x2)
                      : (transposed ? on_host_ldmatrix_x4_trans : on_host_ldmatrix_x4);
  on_host_collective(on_host::kFullMask, "ldmatrix", line, true, execute);
  for (int i = 0; i < matrices; ++i) to[i] = on_host::registers().value[2 + i][on_host::lane()];
}

// Registers 0 to 3: C; then A, then B. On 7.5 these products are two or four of 8 x 8 x 16 on the
// same registers with nothing between them, which is how warp.cpp computes them everywhere.
template <int num_a, int num_b>
inline void mma(int32_t (&c)[4], const uint32_t (&a)[num_a], const uint32_t (&b)[num_b],
                unsigned line, on_host::Execute execute) {
  auto& value = on_host::registers().value;
  const unsigned lane = on_host::lane();
  for (int i = 0; i < 4; ++i) value[i][lane] = static_cast<uint32_t>(c[i]);
  for (int i = 0; i < num_a; ++i) value[4 + i][lane] = a[i];
  for (int i = 0; i < num_b; ++i) value[4 + num_a + i][lane] = b[i];
  on_host_collective(on_host::kFullMask, "mma", line, true, execute);
  for (int i = 0; i < 4; ++i) c[i] = static_cast<int32_t>(value[i][lane]);
}

}  // namespace on_host_detail

#define ON_HOST_LDMATRIX(name, matrices, transposed)                                               \
  inline void name(uint32_t (&to)[matrices], shared_t row, unsigned line = __builtin_LINE()) {     \
    on_host_detail::ldmatrix<matrices, transposed>(to, row, line);                                 \
  }
ON_HOST_LDMATRIX(ldmatrix_x1, 1, false)
ON_HOST_LDMATRIX(ldmatrix_x2, 2, false)
ON_HOST_LDMATRIX(ldmatrix_x4, 4, false)
ON_HOST_LDMATRIX(ldmatrix_x1_trans, 1, true)
ON_HOST_LDMATRIX(ldmatrix_x2_trans, 2, true)
ON_HOST_LDMATRIX(ldmatrix_x4_trans, 4, true)
#undef ON_HOST_LDMATRIX

template <typename A>
inline void mma_16x8x16(int32_t (&c)[4], const uint32_t (&a)[2], const uint32_t (&b)[1],
                        unsigned line = __builtin_LINE()) {
  static_assert(std::is_same_v<A, int8_t> || std::is_same_v<A, uint8_t>, "s8 or u8");
  constexpr bool is_signed = std::is_same_v<A, int8_t>;
  on_host_detail::mma(c, a, b, line,
                      is_signed ? on_host_mma_m16n8k16_s8 : on_host_mma_m16n8k16_u8);
}

template <typename A>
inline void mma_16x8x32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        unsigned line = __builtin_LINE()) {
  static_assert(std::is_same_v<A, int8_t> || std::is_same_v<A, uint8_t>, "s8 or u8");
  constexpr bool is_signed = std::is_same_v<A, int8_t>;
  on_host_detail::mma(c, a, b, line,
                      is_signed ? on_host_mma_m16n8k32_s8 : on_host_mma_m16n8k32_u8);
}

// cvt.pack.sat: each number saturated to a byte, the first one in the lowest.
namespace on_host_detail {
template <int low, int high>
inline uint32_t pack4(int32_t x0, int32_t x1, int32_t x2, int32_t x3) {
  uint32_t word = 0;
  const int32_t numbers[4] = {x0, x1, x2, x3};
  for (int i = 0; i < 4; ++i) {
    const int32_t byte = numbers[i] < low ? low : (numbers[i] > high ? high : numbers[i]);
    word |= (static_cast<uint32_t>(byte) & 0xff) << (8 * i);
  }
  return word;
}
}  // namespace on_host_detail

inline uint32_t pack4_saturated(int32_t x0, int32_t x1, int32_t x2, int32_t x3) {
  return on_host_detail::pack4<-128, 127>(x0, x1, x2, x3);
}

inline uint32_t pack4_saturated_unsigned(int32_t x0, int32_t x1, int32_t x2, int32_t x3) {
  return on_host_detail::pack4<0, 255>(x0, x1, x2, x3);
}

// One access each, whatever g++ makes of a vector.
__attribute__((no_sanitize("thread"))) inline uint4 load_shared16(shared_t from) {
  on_host_access_shared(reinterpret_cast<void*>(from), 16, false, "ld.shared.v4");
  return *reinterpret_cast<const uint4*>(from);
}

__attribute__((no_sanitize("thread"))) inline void store_shared16(shared_t to, uint4 value) {
  on_host_access_shared(reinterpret_cast<void*>(to), 16, true, "st.shared.v4");
  *reinterpret_cast<uint4*>(to) = value;
}

inline void copy16_async(shared_t to, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 800
  on_host_copy_async(reinterpret_cast<void*>(to), from, 16, valid ? 16 : 0);
#else
  uint4 value = make_uint4(0, 0, 0, 0);
  if (valid) value = *reinterpret_cast<const uint4*>(from);
  store_shared16(to, value);
#endif
}

inline void commit_copies() {
#if __CUDA_ARCH__ >= 800
  on_host_copy_commit();
#endif
}

template <int pending>
inline void wait_copies() {
#if __CUDA_ARCH__ >= 800
  on_host_copy_wait(pending);
#endif
}

}  // namespace ibert
