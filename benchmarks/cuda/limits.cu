// What an NVIDIA GPU can do at most: the matrix instruction that this project's kernels use, with
// all operands in registers, and reads and copies of device memory.
//
// Every kernel takes one pointer and one number, so that one way of launching serves all of them.
#include <cstdint>

#include "primitives.cuh"

namespace {

// Independent accumulators of a warp: with four warps per scheduler more than the latency of a
// matrix instruction needs.
constexpr int kChains = 8;
// Steps of a loop that are written out, so that the loop itself costs nothing.
constexpr int kUnrolled = 16;
// Loads that a thread has in flight: with 2048 threads of a multiprocessor more than any bandwidth
// times latency needs.
constexpr int kInFlight = 8;

// Operands that the compiler cannot know. Their bits look random, because tensor cores that
// multiply zeros take less power and keep a clock that no model sees.
__device__ uint32_t operand(uint32_t seed) {
  seed = (seed ^ 61u) ^ (seed >> 16);
  seed *= 9u;
  seed ^= seed >> 4;
  seed *= 0x27d4eb2du;
  return seed ^ (seed >> 15);
}

}  // namespace

// 16 * 8 products of 16 x 8 x 32 of a warp per loop; benchmarks/cuda/limits.py counts with these
// numbers. One product is one instruction from sm_80 on, four of 8 x 8 x 16 before.
extern "C" __global__ void __launch_bounds__(256) limit_mma(int32_t* out, uint32_t loops) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  uint32_t a[4], b[2];
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    a[i] = operand(4 * thread + i);
    b[i / 2] = operand(~(4 * thread + i));
  }
  int32_t sums[kChains][4];
#pragma unroll
  for (int chain = 0; chain < kChains; ++chain) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // All different: equal chains would be computed once.
      sums[chain][i] = static_cast<int32_t>(thread) + 4 * chain + i;
    }
  }
  for (uint32_t loop = 0; loop < loops; ++loop) {
#pragma unroll
    for (int step = 0; step < kUnrolled; ++step) {
#pragma unroll
      for (int chain = 0; chain < kChains; ++chain) {
        ibert::mma_16x8x32<int8_t>(sums[chain], a, b);
      }
    }
  }
  int32_t all = 0;
#pragma unroll
  for (int chain = 0; chain < kChains; ++chain) {
    all ^= sums[chain][0] ^ sums[chain][1] ^ sums[chain][2] ^ sums[chain][3];
  }
  out[thread] = all;
}

// Reads `count` pieces of 16 bytes, a multiple of kInFlight per thread; neighbouring threads read
// neighbouring pieces.
extern "C" __global__ void __launch_bounds__(256) limit_read(uint4* memory, uint32_t count) {
  const uint32_t step = gridDim.x * blockDim.x;
  uint32_t all = 0;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += kInFlight * step) {
    uint4 pieces[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      pieces[j] = memory[i + j * step];
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      all ^= pieces[j].x ^ pieces[j].y ^ pieces[j].z ^ pieces[j].w;
    }
  }
  if (all == 0x5eed5eed) {  // hardly ever, and never known not to be
    memory[0].x = all;
  }
}

// Copies the first half of `count` pieces of 16 bytes, a multiple of kInFlight per thread, to the
// second.
extern "C" __global__ void __launch_bounds__(256) limit_copy(uint4* memory, uint32_t count) {
  const uint32_t step = gridDim.x * blockDim.x, half = count / 2;
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < half; i += kInFlight * step) {
    uint4 pieces[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      pieces[j] = memory[i + j * step];
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      memory[half + i + j * step] = pieces[j];
    }
  }
}

// Nothing: what a launch takes by itself.
extern "C" __global__ void limit_launch(int32_t* out, uint32_t count) {}
