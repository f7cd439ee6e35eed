/* Computes with floating point. Each piece is a function f, compiled alone or beside the others. */

// sum
float f(float a, float b) { return a + b; }

// product
double f(double a, double b) { return a * b; }

// quotient
float f(float a, float b) { return a / b; }

// comparison
int f(float a, float b) { return a < b; }

// no_number
int f(double a) { return __builtin_isnan(a); }

// larger
float f(float a, float b) { return a > b ? a : b; }

// from_int
float f(int a) { return a; }

// from_unsigned
double f(unsigned a) { return a; }

// from_wide
float f(long long a) { return a; }

// to_int
int f(float a) { return a; }

// to_wide
unsigned long long f(double a) { return a; }

// widening
double f(float a) { return a; }

// narrowing
float f(double a) { return a; }

// scaling
void f(float *p) { for (int i = 0; i < 64; i++) p[i] *= 3.0f; }

// dequantisation
void f(float *p, const signed char *q){ for (int i = 0; i < 64; i++) p[i] = q[i] * 0.25f; }

// sum_of_floats
double f(const double *p){ double s = 0; for (int i = 0; i < 64; i++) s += p[i]; return s; }

// requantisation
int f(int a) { return (int)(a * 0.37f + 0.5f); }

// hidden
int f(int a, int b) { return a / (b | 1) + (a == 7777 ? (int)(b * 0.5f) : 0); }

// exponential
double exp(double); double f(double a) { return exp(a) + 1.0; }

// root
float sqrtf(float); float f(float a) { return sqrtf(a); }

// long_double
long double f(long double a) { return a * 3; }

// complex
_Complex float f(_Complex float a, _Complex float b) { return a * b; }
