/* Computes with integers only, some of them in places where floats are. Each piece is a function f, compiled alone or beside the others. */

// dot
int f(const signed char *a, const signed char *b){ int s = 0; for (int i = 0; i < 64; i++) s += a[i] * b[i]; return s; }

// offset_dot
int f(const unsigned char *a, const signed char *b){ int s = 0; for (int i = 0; i < 64; i++) s += a[i] * b[i]; return s; }

// requantisation
int f(int a, int m){ long long p = (long long)a * m + (1 << 30); int r = (int)(p >> 31); return r < -127 ? -127 : r > 127 ? 127 : r; }

// division
int f(int a, int b) { return a / b + a % b; }

// wide_division
long long f(long long a, long long b) { return a / b; }

// square_root
unsigned f(unsigned n) { unsigned x = n; for (int i = 0; i < 20 && x; i++) x = (x + n / x) / 2; return x; }

// bits_of_a_float
unsigned f(float a){ unsigned b; __builtin_memcpy(&b, &a, 4); return b >> 23; }

// float_of_bits
float f(unsigned b) { float a; __builtin_memcpy(&a, &b, 4); return a; }

// copied_floats
void f(float *p, const float *q){ for (int i = 0; i < 64; i++) p[i] = q[63 - i]; }

// population
int f(unsigned a) { return __builtin_popcount(a) + __builtin_clz(a); }

// copy
void f(void *a, const void *b){ struct s { int a[16]; }; *(struct s *)a = *(const struct s *)b; }

// maximum
int f(const int *p){ int m = p[0]; for (int i = 1; i < 64; i++) m = p[i] > m ? p[i] : m; return m; }

// absolute
void f(short *p){ for (int i = 0; i < 64; i++) p[i] = p[i] < 0 ? -p[i] : p[i]; }

// saturated
void f(signed char *q, const int *p){ for (int i = 0; i < 64; i++) q[i] = p[i] < -127 ? -127 : p[i] > 127 ? 127 : p[i]; }

// table
extern const short t[256]; void f(const unsigned char *p, short *q){ for (int i = 0; i < 64; i++) q[i] = t[p[i]]; }

// shifts
void f(int *p) { for (int i = 0; i < 64; i++) p[i] = ((p[i] << 7) + 64) >> 9; }

// shifts_by
void f(int *p, const int *n){ for (int i = 0; i < 64; i++) p[i] >>= n[i] & 31; }

// wide_products
void f(long long *p, const int *a, const int *b){ for (int i = 0; i < 64; i++) p[i] = (long long)a[i] * b[i]; }

// powers
void f(unsigned *p) { for (int i = 0; i < 64; i++) p[i] = 1u << (p[i] & 31); }

// cases
int f(int a) { switch (a) { case 0: return 7; case 1: return 9; case 2: return 4; case 3: return 1; case 4: return 12; case 5: return 3; default: return a; } }
