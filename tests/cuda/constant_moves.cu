extern "C" __global__ void __launch_bounds__(128) scale(const int* __restrict__ a,
                                                        long long* __restrict__ b, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  int sums[32];
#pragma unroll
  for (int j = 0; j < 32; ++j) sums[j] = j * 0x3c003c00;
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int j = 0; j < 32; ++j) sums[j] = __dp4a(a[i + k * 32 + j], a[i], 2 * sums[j]);
  }
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    const long long t = (sums[j] * 1234567ll + (1ll << 21)) >> 22;
    const int q = t < -128 ? -128 : t > 127 ? 127 : (int)t;
    b[i * 32 + j] = (q * q - 32768 * q + 1000003) * 98765432123ll;
  }
}
