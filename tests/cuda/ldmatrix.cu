#include "primitives.cuh"
extern "C" __global__ void run(const int4* rows, const int* order, uint32_t* to) {
  __shared__ __align__(16) int4 s[32];
  s[threadIdx.x] = rows[threadIdx.x];
  __syncwarp();
  uint32_t r[N];
  ibert::ldmatrix_xNTRANS(r, ibert::shared_address(s + order[threadIdx.x]));
  for (int i = 0; i < N; ++i) to[32 * i + threadIdx.x] = r[i];
}
