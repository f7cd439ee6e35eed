// What generated kernels and the other device headers use of the hardware. All inline PTX of the
// project is in this file. Everything else is plain C++ on top of it, so executing CUDA code on a
// CPU takes another version of these functions, and of CUDA's built-ins, and nothing more.
//
// Contract. What a host's version (`on_host/primitives.h`) must define: CUDA's built-ins as far as
// they are used (threadIdx, __syncthreads, __syncwarp, __shfl_xor_sync, __clz, __clzll, __mulhi,
// __umulhi, __umul64hi, uint2, uint4, __device__, __forceinline__ ...), and in namespace ibert
//
//   typedef ... shared_t;                  an address in shared memory, to which bytes are added
//   shared_t shared_address(const void*);  of a pointer into shared memory
//   constexpr bool async_copies;           whether copies run while the caller goes on
//   void ldmatrix_x1(uint32_t (&to)[1], shared_t row);   and _x2 (2), _x4 (4): below
//   void ldmatrix_x1_trans(...);                         and _x2, _x4
//   template <typename A> void mma_16x8x32(int32_t (&c)[4], const uint32_t (&a)[4],
//                                          const uint32_t (&b)[2]);
//   template <typename A> void mma_16x8x16(int32_t (&c)[4], const uint32_t (&a)[2],
//                                          const uint32_t (&b)[1]);
//   void copy16_async(shared_t to, const void* from, bool valid);
//   void commit_copies();
//   template <int pending> void wait_copies();
//   uint4 load_shared16(shared_t from);
//   void store_shared16(shared_t to, uint4 value);
//   uint32_t pack4_saturated(int32_t, int32_t, int32_t, int32_t);   and pack4_saturated_unsigned
//
// What follows the #endif is common to both.
#pragma once

#include <stdint.h>

#ifdef IBERT_ON_HOST
#include "on_host/primitives.h"
#else

namespace ibert {

// Fragments. A lane's g = lane / 4 is its group, t = lane % 4 its place in the group (PTX ISA,
// "Matrix fragments for mma.m16n8k32"). Bytes in a register are in memory's order.
//
//   A, 16 rows x 32 of depth, 4 registers:
//     a[0]: row g,     depth 4t .. 4t + 3         a[2]: row g,     depth 16 + 4t ..
//     a[1]: row g + 8, depth 4t ..                a[3]: row g + 8, depth 16 + 4t ..
//   B, 32 of depth x 8 columns, 2 registers:
//     b[0]: column g, depth 4t ..                 b[1]: column g, depth 16 + 4t ..
//   C, 16 rows x 8 columns of int32, 4 registers:
//     c[0], c[1]: row g, columns 2t, 2t + 1       c[2], c[3]: row g + 8, the same columns
//
// With a depth of 16, A has a[0], a[1] and B has b[0] of these. In all of them a register of A or
// B is what ldmatrix gives of a matrix of 8 rows x 16 bytes (8 x 8 of b16, "ldmatrix"): lane l has
// bytes 4t .. 4t + 3 of row g. So with ldmatrix_x4 on rows of activations, where lane l points
// to row l % 16 and byte 16 (l / 16), `a` is loaded by one instruction; and with lane l pointing to
// row l % 8 + 8 (l / 16) and byte 16 (l / 8 % 2) of row-major weights [columns, depth], two `b` of
// neighbouring columns are.

// Compute capability 7.5 has products of 8 x 8 x 16 only, 8.0 and later one of 16 x 8 x 32, whose
// fragments are four, two and two of the small ones: one function serves both.

typedef uint32_t shared_t;

__device__ __forceinline__ shared_t shared_address(const void* pointer) {
  return static_cast<shared_t>(__cvta_generic_to_shared(pointer));
}

// Load 1, 2 or 4 matrices of 8 rows x 16 bytes. Lane l gives the address of row l % 8 of matrix
// l / 8, a multiple of 16; of x1 and x2 the addresses of higher lanes are ignored but have to be
// valid ("ldmatrix").
__device__ __forceinline__ void ldmatrix_x1(uint32_t (&to)[1], shared_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(to[0])
               : "r"(row));
}

__device__ __forceinline__ void ldmatrix_x2(uint32_t (&to)[2], shared_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(row));
}

__device__ __forceinline__ void ldmatrix_x4(uint32_t (&to)[4], shared_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

// The same, each matrix of 8 x 8 halves (16 bits) transposed: lane l has halves 2t and 2t + 1 of
// *column* g, the lower row in the lower half.
__device__ __forceinline__ void ldmatrix_x1_trans(uint32_t (&to)[1], shared_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(to[0])
               : "r"(row));
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&to)[2], shared_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(row));
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&to)[4], shared_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

// Matrix products into 32 bits, which wrap ("mma"). A is int8_t or uint8_t, the type of the first
// operand; the second is int8.
template <typename A>
struct Mma;

#define IBERT_DEFINE_MMA(type, name)                                                              \
  template <>                                                                                     \
  struct Mma<type> {                                                                              \
    static __device__ __forceinline__ void m8n8k16(int32_t& c0, int32_t& c1, uint32_t a,          \
                                                   uint32_t b) {                                  \
      asm("mma.sync.aligned.m8n8k16.row.col.s32." name ".s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"  \
          : "+r"(c0), "+r"(c1)                                                                    \
          : "r"(a), "r"(b));                                                                      \
    }                                                                                             \
    static __device__ __forceinline__ void m16n8k16(int32_t (&c)[4], const uint32_t (&a)[2],      \
                                                    uint32_t b) {                                 \
      asm("mma.sync.aligned.m16n8k16.row.col.s32." name                                           \
          ".s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                           \
          : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                        \
          : "r"(a[0]), "r"(a[1]), "r"(b));                                                        \
    }                                                                                             \
    static __device__ __forceinline__ void m16n8k32(int32_t (&c)[4], const uint32_t (&a)[4],      \
                                                    const uint32_t (&b)[2]) {                     \
      asm("mma.sync.aligned.m16n8k32.row.col.s32." name                                           \
          ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"               \
          : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                                        \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                    \
    }                                                                                             \
  };

IBERT_DEFINE_MMA(int8_t, "s8")
IBERT_DEFINE_MMA(uint8_t, "u8")
#undef IBERT_DEFINE_MMA

// c += a b over a depth of 16.
template <typename A>
__device__ __forceinline__ void mma_16x8x16(int32_t (&c)[4], const uint32_t (&a)[2],
                                            const uint32_t (&b)[1]) {
#if __CUDA_ARCH__ >= 800
  Mma<A>::m16n8k16(c, a, b[0]);
#else
  Mma<A>::m8n8k16(c[0], c[1], a[0], b[0]);
  Mma<A>::m8n8k16(c[2], c[3], a[1], b[0]);
#endif
}

// c += a b over a depth of 32.
template <typename A>
__device__ __forceinline__ void mma_16x8x32(int32_t (&c)[4], const uint32_t (&a)[4],
                                            const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  Mma<A>::m16n8k32(c, a, b);
#else
  Mma<A>::m8n8k16(c[0], c[1], a[0], b[0]);
  Mma<A>::m8n8k16(c[2], c[3], a[1], b[0]);
  Mma<A>::m8n8k16(c[0], c[1], a[2], b[1]);
  Mma<A>::m8n8k16(c[2], c[3], a[3], b[1]);
#endif
}

__device__ __forceinline__ uint4 load_shared16(shared_t from) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(from)
               : "memory");
  return value;
}

__device__ __forceinline__ void store_shared16(shared_t to, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(to), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

// Four numbers, each clamped to [-128, 127], to bytes of a register in memory's order: two
// instructions ("cvt.pack"; the first source becomes the upper half of what is packed).
__device__ __forceinline__ uint32_t pack4_saturated(int32_t x0, int32_t x1, int32_t x2,
                                                    int32_t x3) {
  uint32_t upper, all;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(upper) : "r"(x3), "r"(x2));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(x1), "r"(x0), "r"(upper));
  return all;
}

// The same, clamped to [0, 255].
__device__ __forceinline__ uint32_t pack4_saturated_unsigned(int32_t x0, int32_t x1, int32_t x2,
                                                             int32_t x3) {
  uint32_t upper, all;
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;" : "=r"(upper) : "r"(x3), "r"(x2));
  asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(x1), "r"(x0), "r"(upper));
  return all;
}

// Whether copy16_async returns before the bytes are there. Where it does not (7.5), a loop that
// wants to hide the latency loads 16 bytes to registers early and stores them late.
#if __CUDA_ARCH__ >= 800
constexpr bool async_copies = true;
#else
constexpr bool async_copies = false;
#endif

// 16 bytes from global to shared memory, or zeros where not `valid`; then `from` is not read. Both
// addresses are multiples of 16 ("cp.async"). Another thread sees them after the copying one has
// waited and both have met at a barrier.
__device__ __forceinline__ void copy16_async(shared_t to, const void* from, bool valid) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
               : "memory");
#else
  uint4 value = make_uint4(0, 0, 0, 0);
  if (valid) value = *reinterpret_cast<const uint4*>(from);
  store_shared16(to, value);
#endif
}

// End a group of copies of this thread ("cp.async.commit_group").
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most `pending` of this thread's latest groups are under way
// ("cp.async.wait_group").
template <int pending>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
#endif
}

}  // namespace ibert

#endif  // IBERT_ON_HOST

namespace ibert {

// ---- Vectors of bytes ---------------------------------------------------------------------------

template <int bytes>
struct Bytes;
template <>
struct Bytes<1> { typedef uint8_t type; };
template <>
struct Bytes<2> { typedef uint16_t type; };
template <>
struct Bytes<4> { typedef uint32_t type; };
template <>
struct Bytes<8> { typedef uint2 type; };
template <>
struct Bytes<16> { typedef uint4 type; };

// Copy `bytes` (1, 2, 4, 8, or a multiple of 16) by the widest accesses there are. Both pointers
// are aligned to the smaller of `bytes` and 16; one is a small local array that stays in registers.
template <int bytes>
__device__ __forceinline__ void copy_bytes(void* to, const void* from) {
  constexpr int width = bytes < 16 ? bytes : 16;
  static_assert(bytes % width == 0, "16 bytes at a time");
  typedef typename Bytes<width>::type Vector;
#pragma unroll
  for (int i = 0; i < bytes / width; ++i) {
    reinterpret_cast<Vector*>(to)[i] = reinterpret_cast<const Vector*>(from)[i];
  }
}

// Four numbers to bytes of a register, in memory's order; upper bits are dropped.
__device__ __forceinline__ uint32_t pack4(int32_t x0, int32_t x1, int32_t x2, int32_t x3) {
  return (static_cast<uint32_t>(x0) & 0xff) | (static_cast<uint32_t>(x1) & 0xff) << 8 |
         (static_cast<uint32_t>(x2) & 0xff) << 16 | static_cast<uint32_t>(x3) << 24;
}

// The numbers that both halves of four bytes stand for: (half byte - 8) times a scale, 1 to 16. The
// product, and 128 - 8 times the scale more, is 0 to 255: four of them in one do not meet. The last
// 128 is a sign.
__device__ __forceinline__ void widen_halves(uint32_t (&to)[2], uint32_t bytes, uint32_t scale) {
  constexpr uint32_t every = 0x01010101u;
  const uint32_t offset = 128 * every - 8 * every * scale;
  to[0] = ((bytes & 15 * every) * scale + offset) ^ 128 * every;
  to[1] = ((bytes >> 4 & 15 * every) * scale + offset) ^ 128 * every;
}

// ---- Arithmetic ---------------------------------------------------------------------------------

// The argument. TVM's simplifier sees a call of which it knows nothing.
template <typename T>
__device__ __forceinline__ T opaque(T x) {
  return x;
}

__device__ __forceinline__ int32_t saturate(int32_t x, int32_t low, int32_t high) {
  return x < low ? low : (x > high ? high : x);
}

// The rounded product of two numbers of 16 bits in Q15: (a b + 2^14) >> 15. The specification's
// `ibert_q15_multiply`; -32768 * -32768 gives 32768.
__device__ __forceinline__ int32_t q15_multiply(int32_t a, int32_t b) {
  return (a * b + (1 << 14)) >> 15;
}

// A lower bound of 2^62 / divisor for a divisor of 32 bits of which the highest is set, within 1/289
// of it: a straight line, and a step of Newton's on a fixed point of 30 bits.
__device__ __forceinline__ uint32_t rough_reciprocal(uint32_t divisor) {
  // 48/17 - 32/17 d is within 1/17 of 1/d for d from 1/2 to 1.
  constexpr uint32_t intercept = 3031741621u;
  constexpr uint32_t slope = 2021161081u;
  const uint32_t estimate = intercept - __umulhi(divisor, slope);
  // x (2 - d x), never above 1/d; 2 - d x is rounded down so that this holds of the result too.
  return __umulhi(estimate, (0x7fffffffu - __umulhi(divisor, estimate)) << 1) << 1;
}

// n / d, truncated, for n up to 2^31 and d from 1 to 2^31. No conversion to floating point, which
// is what the compiler's own division is on a GPU.
__device__ __forceinline__ uint32_t divide_unsigned(uint32_t n, uint32_t d) {
  const int shift = __clz(d);
  // z approaches 2^32 / d from below, so that -d z is 2^32 times its relative error, in 32 bits.
  // An error of 1/289 becomes 1/83521, then 2^-32.7: less than the last bit.
  uint32_t z = (rough_reciprocal(d << shift) << 1) >> (31 - shift);
  z += __umulhi(z, 0u - d * z);
  z += __umulhi(z, 0u - d * z);
  uint32_t q = __umulhi(n, z);
  uint32_t rest = n - q * d;
  // z is less than three too small, and n at most half of 2^32: q is at most two too small.
  if (rest >= d) { ++q; rest -= d; }
  if (rest >= d) ++q;
  return q;
}

// The same for 64 bits: n up to 2^63, d from 1 to 2^63.
__device__ __forceinline__ uint64_t divide_unsigned(uint64_t n, uint64_t d) {
  const int shift = __clzll(static_cast<long long>(d));
  const uint32_t high = static_cast<uint32_t>((d << shift) >> 32);
  // The divisor's lower bits are missing: a lower bound for high + 1 is one for the whole.
  const uint32_t rough = rough_reciprocal(high == 0xffffffffu ? high : high + 1);
  const uint32_t bound = high == 0xffffffffu ? rough - 1 : rough;
  uint64_t z = (static_cast<uint64_t>(bound) << 33) >> (63 - shift);
  // 1/289 becomes 2^-16.3, 2^-32.7, 2^-65.
#pragma unroll
  for (int i = 0; i < 3; ++i) z += __umul64hi(z, 0ull - d * z);
  uint64_t q = __umul64hi(n, z);
  uint64_t rest = n - q * d;
  if (rest >= d) { ++q; rest -= d; }
  if (rest >= d) ++q;
  return q;
}

}  // namespace ibert

// a / b, truncated towards zero like C's division and TIR's `truncdiv`, in integer instructions
// only. b is not 0, and the quotient fits the type.
__device__ __forceinline__ int32_t ibert_divide(int32_t a, int32_t b) {
  const uint32_t n = a < 0 ? 0u - static_cast<uint32_t>(a) : static_cast<uint32_t>(a);
  const uint32_t d = b < 0 ? 0u - static_cast<uint32_t>(b) : static_cast<uint32_t>(b);
  const uint32_t q = ibert::divide_unsigned(n, d);
  return static_cast<int32_t>((a ^ b) < 0 ? 0u - q : q);
}

__device__ __forceinline__ int64_t ibert_divide(int64_t a, int64_t b) {
  const uint64_t n = a < 0 ? 0ull - static_cast<uint64_t>(a) : static_cast<uint64_t>(a);
  const uint64_t d = b < 0 ? 0ull - static_cast<uint64_t>(b) : static_cast<uint64_t>(b);
  const uint64_t q = ibert::divide_unsigned(n, d);
  return static_cast<int64_t>((a ^ b) < 0 ? 0ull - q : q);
}

// ---- Warps --------------------------------------------------------------------------------------

namespace ibert {

constexpr unsigned all_lanes = 0xffffffffu;

// The sum, or the largest, over `lanes` neighbouring lanes (a power of two up to 32), in every lane
// of them. All 32 lanes of the warp take part. T is int32_t, uint32_t, int64_t or uint64_t.
template <int lanes = 32, typename T>
__device__ __forceinline__ T sum_lanes(T x) {
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(all_lanes, x, step);
  return x;
}

template <int lanes = 32, typename T>
__device__ __forceinline__ T max_lanes(T x) {
#pragma unroll
  for (int step = lanes / 2; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(all_lanes, x, step);
    x = x < other ? other : x;
  }
  return x;
}

}  // namespace ibert
