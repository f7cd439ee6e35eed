/* The limits of this machine, per thread count: 8-bit dot products, FP32 multiply-adds, reads.
 *
 * usage: limits THREADS SECONDS
 * prints one line "name best unit" per limit; a limit that the processor lacks is left out.
 * "GMAC/s" counts multiply-accumulates; each thread's best burst counts, all threads together. Operands stay in registers, so this is the
 * ceiling of the instruction itself: no kernel can be faster.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Each kernel performs `count` steps and returns the work done in one step. 24 independent
 * accumulators cover latency x throughput of every processor known (5 cycles x 2 per cycle). */
typedef double (*kernel_t)(long count, void *buffer, size_t bytes);

#define REPEAT24(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) \
  F(12) F(13) F(14) F(15) F(16) F(17) F(18) F(19) F(20) F(21) F(22) F(23)
#define REPEAT12(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)

static volatile int32_t sink;

#define INT_KERNEL(NAME, TARGET, REPEAT, TYPE, ZERO, SET1, STEP, SINK, WORK)        \
  __attribute__((target(TARGET))) static double NAME(long count, void *b, size_t n) { \
    (void)b; (void)n;                                                               \
    TYPE x = SET1(3), y = SET1(5);                                                  \
    REPEAT(ZERO)                                                                    \
    for (long i = 0; i < count; i++) {                                              \
      REPEAT(STEP)                                                                  \
    }                                                                               \
    SINK                                                                            \
    return WORK;                                                                    \
  }

/* Inline assembly: with intrinsics a compiler may fold steps whose operands do not change. */
#define ZERO_ZMM(i) __m512i a##i = _mm512_setzero_si512();
#define STEP_VNNI512(i) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(a##i) : "v"(x), "v"(y));
#define SINK_ZMM(i) sink += _mm512_cvtsi512_si32(a##i);
INT_KERNEL(vnni512, "avx512f,avx512vnni", REPEAT24, __m512i, ZERO_ZMM, _mm512_set1_epi8,
           STEP_VNNI512, REPEAT24(SINK_ZMM), 24.0 * 64)

/* Four sums of 16 x 16, 64 products each: as many tiles as there are, but for the operands. */
static double tiles(long count, void *b, size_t n) {
  struct { uint8_t palette, rest[15]; uint16_t bytes[16]; uint8_t rows[16]; } shapes;
  (void)b; (void)n;
  memset(&shapes, 0, sizeof shapes);
  shapes.palette = 1;
  for (int i = 0; i < 8; i++) {
    shapes.bytes[i] = 64;
    shapes.rows[i] = 16;
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
  for (long i = 0; i < count; i++)
    __asm__ volatile("tdpbusd %tmm6, %tmm4, %tmm0\n\ttdpbusd %tmm7, %tmm4, %tmm1\n\t"
                     "tdpbusd %tmm6, %tmm5, %tmm2\n\ttdpbusd %tmm7, %tmm5, %tmm3");
  __asm__ volatile("tilerelease");
  return 4.0 * 16 * 16 * 64;
}

#define ZERO_YMM(i) __m256i a##i = _mm256_setzero_si256();
#define STEP_AVXVNNI(i) __asm__ volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(a##i) : "x"(x), "x"(y));
#define STEP_MADD(i) \
  __asm__ volatile("vpmaddwd %2, %1, %%ymm15\n\tvpaddd %%ymm15, %0, %0" \
                   : "+x"(a##i) : "x"(x), "x"(y) : "ymm15");
#define SINK_YMM(i) sink += _mm256_cvtsi256_si32(a##i);
INT_KERNEL(avxvnni, "avx2,avxvnni", REPEAT12, __m256i, ZERO_YMM, _mm256_set1_epi8, STEP_AVXVNNI,
           REPEAT12(SINK_YMM), 12.0 * 32)
INT_KERNEL(madd256, "avx2", REPEAT12, __m256i, ZERO_YMM, _mm256_set1_epi16, STEP_MADD,
           REPEAT12(SINK_YMM), 12.0 * 16)

#define ZERO_PS512(i) __m512 a##i = _mm512_setzero_ps();
#define STEP_FMA512(i) __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(a##i) : "v"(x), "v"(y));
#define SINK_PS512(i) sink += (int32_t)_mm512_cvtss_f32(a##i);
INT_KERNEL(fma512, "avx512f", REPEAT24, __m512, ZERO_PS512, _mm512_set1_ps, STEP_FMA512,
           REPEAT24(SINK_PS512), 24.0 * 16)

#define ZERO_PS256(i) __m256 a##i = _mm256_setzero_ps();
#define STEP_FMA256(i) __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(a##i) : "x"(x), "x"(y));
#define SINK_PS256(i) sink += (int32_t)_mm256_cvtss_f32(a##i);
INT_KERNEL(fma256, "avx2,fma", REPEAT12, __m256, ZERO_PS256, _mm256_set1_ps, STEP_FMA256,
           REPEAT12(SINK_PS256), 12.0 * 8)

/* One step reads the whole buffer once; its work is the bytes read. Vectors as wide as the processor has, in
 * four chains; __builtin_memcpy-free loads through vector types keep this independent of the ISA. */
typedef uint64_t wide __attribute__((vector_size(64)));
#define READ_BODY                                                       \
  wide s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};                          \
  const wide *p = buffer;                                               \
  for (long i = 0; i < count; i++) {                                    \
    __asm__ volatile("" ::: "memory");                                  \
    for (size_t j = 0; j < bytes / 64; j += 4) {                        \
      s0 ^= p[j]; s1 ^= p[j + 1]; s2 ^= p[j + 2]; s3 ^= p[j + 3];       \
    }                                                                   \
  }                                                                     \
  s0 ^= s1 ^ s2 ^ s3;                                                   \
  sink += (int32_t)s0[0];                                               \
  return (double)bytes;
__attribute__((target("avx512f"))) static double read512(long count, void *buffer, size_t bytes) {
  READ_BODY
}
__attribute__((target("avx2"))) static double read256(long count, void *buffer, size_t bytes) {
  READ_BODY
}
static double read128(long count, void *buffer, size_t bytes) { READ_BODY }

typedef struct {
  kernel_t kernel;
  size_t bytes;
  double seconds;
  pthread_barrier_t *barrier;
  double rate; /* best work per second of this thread */
} job_t;

static void *work(void *argument) {
  job_t *job = argument;
  void *buffer = NULL;
  if (job->bytes) {
    if (posix_memalign(&buffer, 4096, job->bytes)) exit(1);
    memset(buffer, 1, job->bytes);
  }
  long count = 1;
  for (;;) { /* bursts of 2 to 4 ms: short enough for some to be undisturbed on a shared machine */
    double start = now();
    job->kernel(count, buffer, job->bytes);
    if (now() - start > 0.002) break;
    count *= 2;
  }
  pthread_barrier_wait(job->barrier);
  double end = now() + job->seconds;
  do {
    double start = now();
    double step = job->kernel(count, buffer, job->bytes);
    double rate = step * (double)count / (now() - start);
    if (rate > job->rate) job->rate = rate;
  } while (now() < end);
  free(buffer);
  return NULL;
}

static void measure(const char *name, const char *unit, kernel_t kernel, size_t bytes, int threads,
                    double seconds) {
  pthread_t ids[256];
  job_t jobs[256];
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, NULL, (unsigned)threads);
  double total = 0;
  for (int i = 0; i < threads; i++) {
    jobs[i] = (job_t){kernel, bytes, seconds, &barrier, 0};
    if (pthread_create(&ids[i], NULL, work, &jobs[i])) exit(1);
  }
  for (int i = 0; i < threads; i++) {
    pthread_join(ids[i], NULL);
    total += jobs[i].rate;
  }
  pthread_barrier_destroy(&barrier);
  printf("%s %.1f %s\n", name, total * 1e-9, unit);
  fflush(stdout);
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  double seconds = argc > 2 ? atof(argv[2]) : 0.5;
  if (threads < 1 || threads > 256) return 2;
  __builtin_cpu_init();
  int wide512 = __builtin_cpu_supports("avx512f");
  int wide256 = __builtin_cpu_supports("avx2");
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 25 & 1) && /* AMX-INT8, by permission */
      syscall(SYS_arch_prctl, 0x1023, 18) == 0)
    measure("int8-tdpbusd-tile", "GMAC/s", tiles, 0, threads, seconds);
  if (__builtin_cpu_supports("avx512vnni"))
    measure("int8-vpdpbusd-zmm", "GMAC/s", vnni512, 0, threads, seconds);
  if (wide256 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1)) /* AVX-VNNI */
    measure("int8-vpdpbusd-ymm-vex", "GMAC/s", avxvnni, 0, threads, seconds);
  if (wide256) measure("int16-vpmaddwd-ymm", "GMAC/s", madd256, 0, threads, seconds);
  if (wide512) measure("fp32-fma-zmm", "GMAC/s", fma512, 0, threads, seconds);
  if (wide256 && __builtin_cpu_supports("fma"))
    measure("fp32-fma-ymm", "GMAC/s", fma256, 0, threads, seconds);
  kernel_t reader = wide512 ? read512 : wide256 ? read256 : read128;
  measure("read-L2", "GB/s", reader, 256u << 10, threads, seconds);
  measure("read-L3", "GB/s", reader, 6u << 20, threads, seconds);
  measure("read-DRAM", "GB/s", reader, 256u << 20, threads, seconds);
  return 0;
}
