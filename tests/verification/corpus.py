"""Pieces of C with floating point and without, compiled for each instruction set."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from ibert_tvm.targets.toolchain import find_linker
from tests.arm.tools import board

WITH = {
    "sum": "float f(float a, float b) { return a + b; }",
    "product": "double f(double a, double b) { return a * b; }",
    "quotient": "float f(float a, float b) { return a / b; }",
    "comparison": "int f(float a, float b) { return a < b; }",
    "no_number": "int f(double a) { return __builtin_isnan(a); }",
    "larger": "float f(float a, float b) { return a > b ? a : b; }",
    "from_int": "float f(int a) { return a; }",
    "from_unsigned": "double f(unsigned a) { return a; }",
    "from_wide": "float f(long long a) { return a; }",
    "to_int": "int f(float a) { return a; }",
    "to_wide": "unsigned long long f(double a) { return a; }",
    "widening": "double f(float a) { return a; }",
    "narrowing": "float f(double a) { return a; }",
    "scaling": "void f(float *p) { for (int i = 0; i < 64; i++) p[i] *= 3.0f; }",
    "dequantisation": "void f(float *p, const signed char *q)"
    "{ for (int i = 0; i < 64; i++) p[i] = q[i] * 0.25f; }",
    "sum_of_floats": "double f(const double *p)"
    "{ double s = 0; for (int i = 0; i < 64; i++) s += p[i]; return s; }",
    "requantisation": "int f(int a) { return (int)(a * 0.37f + 0.5f); }",
    "hidden": "int f(int a, int b) { return a / (b | 1) + (a == 7777 ? (int)(b * 0.5f) : 0); }",
    "exponential": "double exp(double); double f(double a) { return exp(a) + 1.0; }",
    "root": "float sqrtf(float); float f(float a) { return sqrtf(a); }",
    "long_double": "long double f(long double a) { return a * 3; }",
    "complex": "_Complex float f(_Complex float a, _Complex float b) { return a * b; }",
}
WITHOUT = {
    "dot": "int f(const signed char *a, const signed char *b)"
    "{ int s = 0; for (int i = 0; i < 64; i++) s += a[i] * b[i]; return s; }",
    "offset_dot": "int f(const unsigned char *a, const signed char *b)"
    "{ int s = 0; for (int i = 0; i < 64; i++) s += a[i] * b[i]; return s; }",
    "requantisation": "int f(int a, int m)"
    "{ long long p = (long long)a * m + (1 << 30); int r = (int)(p >> 31);"
    " return r < -127 ? -127 : r > 127 ? 127 : r; }",
    "division": "int f(int a, int b) { return a / b + a % b; }",
    "wide_division": "long long f(long long a, long long b) { return a / b; }",
    "square_root": "unsigned f(unsigned n) { unsigned x = n;"
    " for (int i = 0; i < 20 && x; i++) x = (x + n / x) / 2; return x; }",
    "bits_of_a_float": "unsigned f(float a)"
    "{ unsigned b; __builtin_memcpy(&b, &a, 4); return b >> 23; }",
    "float_of_bits": "float f(unsigned b) { float a; __builtin_memcpy(&a, &b, 4); return a; }",
    "copied_floats": "void f(float *p, const float *q)"
    "{ for (int i = 0; i < 64; i++) p[i] = q[63 - i]; }",
    "population": "int f(unsigned a) { return __builtin_popcount(a) + __builtin_clz(a); }",
    "copy": "void f(void *a, const void *b)"
    "{ struct s { int a[16]; }; *(struct s *)a = *(const struct s *)b; }",
    "maximum": "int f(const int *p)"
    "{ int m = p[0]; for (int i = 1; i < 64; i++) m = p[i] > m ? p[i] : m; return m; }",
    "absolute": "void f(short *p){ for (int i = 0; i < 64; i++) p[i] = p[i] < 0 ? -p[i] : p[i]; }",
    "saturated": "void f(signed char *q, const int *p)"
    "{ for (int i = 0; i < 64; i++) q[i] = p[i] < -127 ? -127 : p[i] > 127 ? 127 : p[i]; }",
    "table": "extern const short t[256]; void f(const unsigned char *p, short *q)"
    "{ for (int i = 0; i < 64; i++) q[i] = t[p[i]]; }",
    "shifts": "void f(int *p) { for (int i = 0; i < 64; i++) p[i] = ((p[i] << 7) + 64) >> 9; }",
    "shifts_by": "void f(int *p, const int *n){ for (int i = 0; i < 64; i++) p[i] >>= n[i] & 31; }",
    "wide_products": "void f(long long *p, const int *a, const int *b)"
    "{ for (int i = 0; i < 64; i++) p[i] = (long long)a[i] * b[i]; }",
    "powers": "void f(unsigned *p) { for (int i = 0; i < 64; i++) p[i] = 1u << (p[i] & 31); }",
    "cases": "int f(int a) { switch (a) { case 0: return 7; case 1: return 9; case 2: return 4;"
    " case 3: return 1; case 4: return 12; case 5: return 3; default: return a; } }",
}


@dataclass(frozen=True)
class InstructionSet:
    """What code is compiled to.

    Attributes
    ----------
    target
        A target whose compiler and disassembler are used.
    flags
        Of the compiler, besides the target's.
    """

    target: str
    flags: tuple[str, ...] = ()


_MVE = ("-march=armv8.1-m.main+mve", "-mfloat-abi=hard")
_MVE_OF_FLOATS = ("-march=armv8.1-m.main+mve.fp+fp.dp", "-mfloat-abi=hard")
SETS = {
    "SSE2": InstructionSet("x86-64"),
    "AVX2": InstructionSet("x86-64-v3", ("-march=x86-64-v3",)),
    "AVX-512": InstructionSet(
        "x86-avx512-vnni", ("-march=cascadelake", "-mprefer-vector-width=512")
    ),
    "A64": InstructionSet("rpi4"),
    "A64 with products": InstructionSet("aarch64-i8mm", ("-march=armv8.2-a+dotprod+i8mm+fp16",)),
    "A32": InstructionSet("armv7-neon", ("-marm",)),
    "T32": InstructionSet("armv7-neon", ("-mthumb",)),
    "A32 without a unit": InstructionSet("armv6-softfloat", ("-marm",)),
    "Thumb-1": InstructionSet("cortex-m0"),
    "Thumb-2": InstructionSet("cortex-m3"),
    "Thumb-2 with DSP": InstructionSet("cortex-m4"),
    "MVE": InstructionSet("cortex-m55", _MVE),
    "MVE of floats": InstructionSet("cortex-m55", _MVE_OF_FLOATS),
}
LEVELS = ("-O0", "-O1", "-O2", "-O3")


def compiled(source: str, instructions: InstructionSet, level: str, path: Path) -> Path:
    """Compile C.

    Parameters
    ----------
    source
        Of one file.
    instructions
        What for.
    level
        One of `LEVELS`.
    path
        The object, which is written.
    """
    linker = find_linker(board(instructions.target, run=False))
    command = [*linker, *instructions.flags, level, "-x", "c", "-c", "-", "-o", str(path)]
    subprocess.run(command, input=source.encode(), check=True)
    return path


def joined(pieces: dict[str, str], before: str = "") -> str:
    """One source of several pieces, with a function of the piece's name in the place of ``f``."""
    return "".join(
        f"#define f {name}\n{before}{source}\n#undef f\n" for name, source in pieces.items()
    )
