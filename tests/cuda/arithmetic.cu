#include "primitives.cuh"
extern "C" __global__ void run(const int* a, const int* b, int* c, unsigned long long* d) {
  const int i = threadIdx.x, n = blockDim.x;
  c[i] = __mulhi(a[i], b[i]);
  c[n + i] = __umulhi(a[i], b[i]);
  c[2 * n + i] = __clz(a[i] & 0xffff);
  c[3 * n + i] = __byte_perm(a[i], b[i], i * 2654435761u);
  c[4 * n + i] = __dp4a(a[i], b[i], i);
  c[5 * n + i] = __popc(a[i]);
  c[6 * n + i] = __ffs(a[i] & ~0xff);
  c[7 * n + i] = ibert::pack4_saturated(a[i] >> 22, b[i] >> 22, i - 130, i + 100);
  c[8 * n + i] = ibert::pack4_saturated_unsigned(a[i] >> 22, b[i] >> 22, i - 130, i + 100);
  d[i] = __umul64hi((unsigned long long)a[i] << 20, (unsigned long long)b[i] << 9);
  d[n + i] = __clzll((unsigned long long)(a[i] & 0xffff) << 9);
}
