#include <cuda.h>
extern "C" __global__ void run(int* a, long long* b) {
  const int lane = threadIdx.x;
  const int x = a[lane];
  a[32 + lane] = __shfl_sync(0xffffffff, x, lane * 7 + 3);
  a[64 + lane] = __shfl_sync(0xffffffff, x, 5, 8);
  a[96 + lane] = __shfl_xor_sync(0xffffffff, x, 9);
  a[128 + lane] = __shfl_xor_sync(0xffffffff, x, 12, 8);
  a[160 + lane] = __shfl_down_sync(0xffffffff, x, 3);
  a[192 + lane] = __shfl_down_sync(0xffffffff, x, 3, 16);
  a[224 + lane] = __shfl_up_sync(0xffffffff, x, 3, 16);
  a[256 + lane] = __ballot_sync(0xffffffff, x & 1);
  a[288 + lane] = __any_sync(0xffffffff, x == a[4]) + 2 * __all_sync(0xffffffff, x == a[4]);
  b[lane] = __shfl_xor_sync(0xffffffff, b[lane], 31);
}
