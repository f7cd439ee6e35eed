#include "primitives.cuh"
extern "C" __global__ void run(const uint32_t* a, const uint32_t* b, int32_t* c) {
  const int lane = threadIdx.x;
  uint32_t fa[A], fb[B];
  int32_t fc[4];
  for (int i = 0; i < A; ++i) fa[i] = a[32 * i + lane];
  for (int i = 0; i < B; ++i) fb[i] = b[32 * i + lane];
  for (int i = 0; i < 4; ++i) fc[i] = c[32 * i + lane];
  ibert::mma_16x8xDEPTH<TYPE>(fc, fa, fb);
  for (int i = 0; i < 4; ++i) c[32 * i + lane] = fc[i];
}
