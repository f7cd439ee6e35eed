extern "C" __global__ void dense_kernel(const int* a, int* b, int n) {
  __shared__ int kept[96];
  kept[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  b[threadIdx.x] = kept[threadIdx.x ^ 1] / n;   // goes through a reciprocal in floating point
}
extern "C" __global__ void dense_kernel_kernel(const int* a, int* b, int n) {
  int many[64] = {};                            // a variable index: local memory
  for (int i = 0; i < n; ++i) many[a[i] & 63] += i;
  for (int i = 0; i < n; ++i) b[i] = many[b[i] & 63];
}
