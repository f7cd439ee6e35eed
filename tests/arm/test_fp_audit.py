"""The audit for floating point: 11 pieces of code with it, 11 without, each for every kind of ARM.

What makes it worth having is that it finds all of the first and nothing of the second, among them
integers in floating-point registers.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ibert_tvm.targets.fp_rules import is_float_helper, is_floating_point
from ibert_tvm.targets.toolchain import find_linker
from tests.arm.fp_audit import audit
from tests.arm.tools import board

WITH = {
    "sum": "float f(float a, float b) { return a + b; }",
    "product": "double f(double a, double b) { return a * b; }",
    "quotient": "float f(float a, float b) { return a / b; }",
    "comparison": "int f(float a, float b) { return a < b; }",
    "from_int": "float f(int a) { return a; }",
    "from_unsigned": "double f(unsigned a) { return a; }",
    "to_int": "int f(float a) { return a; }",
    "widening": "double f(float a) { return a; }",
    "scaling": "void f(float *p) { for (int i = 0; i < 64; i++) p[i] *= 3.0f; }",
    "requantisation": "int f(int a) { return (int)(a * 0.37f + 0.5f); }",
    "exponential": "double exp(double); double f(double a) { return exp(a) + 1.0; }",
}
WITHOUT = {
    "dot": "int f(const signed char *a, const signed char *b)"
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
    "population": "int f(unsigned a) { return __builtin_popcount(a) + __builtin_clz(a); }",
    "copy": "struct s { int a[16]; }; void f(struct s *a, const struct s *b) { *a = *b; }",
    "maximum": "int f(const int *p)"
    "{ int m = p[0]; for (int i = 1; i < 64; i++) m = p[i] > m ? p[i] : m; return m; }",
    "table": "extern const short t[256]; void f(const unsigned char *p, short *q)"
    "{ for (int i = 0; i < 64; i++) q[i] = t[p[i]]; }",
    "shifts": "void f(int *p) { for (int i = 0; i < 64; i++) p[i] = ((p[i] << 7) + 64) >> 9; }",
}
KINDS = ("aarch64-dotprod", "armv7-neon", "armv6-softfloat")


def compiled(source: str, target: str, folder: Path) -> Path:
    """An object of a piece of C, optimised as far as it goes."""
    (folder / "piece.c").write_text(source + "\n", encoding="utf-8")
    linker = find_linker(board(target, run=False))
    path = folder / "piece.o"
    subprocess.run([*linker, "-O3", "-c", "piece.c", "-o", str(path)], cwd=folder, check=True)
    return path


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("name", WITH)
def test_code_with_floating_point_is_found(name: str, target: str, tmp_path: Path) -> None:
    assert audit(compiled(WITH[name], target, tmp_path), board(target, run=False))


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("name", WITHOUT)
def test_code_without_floating_point_is_not(name: str, target: str, tmp_path: Path) -> None:
    assert audit(compiled(WITHOUT[name], target, tmp_path), board(target, run=False)) == []


def test_there_are_eleven_of_each() -> None:
    assert (len(WITH), len(WITHOUT)) == (11, 11)


@pytest.mark.parametrize(
    ("name", "word"), [("aarch64-dotprod", "0x02000000"), ("armv7-neon", "0xffffffff")]
)
def test_what_is_no_instruction_is_an_error(name: str, word: str, tmp_path: Path) -> None:
    target = board(name, run=False)
    (tmp_path / "bad.s").write_text(f".text\nf: .inst {word}\n", encoding="utf-8")
    command = [*find_linker(target), "-c", "bad.s", "-o", "bad.o"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with pytest.raises(ValueError, match="not an instruction"):
        audit(tmp_path / "bad.o", target)


def test_no_code_is_an_error(tmp_path: Path) -> None:
    target = board("aarch64-dotprod", run=False)
    (tmp_path / "empty.s").write_text(".text\n", encoding="utf-8")
    command = [*find_linker(target), "-c", "empty.s", "-o", "empty.o"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with pytest.raises(ValueError, match="holds no code"):
        audit(tmp_path / "empty.o", target)


FLOATING = {
    "EM_AARCH64": """fadd fmul fmla fcvtzs fcmp fcsel fmax fsqrt frintn frecpe fabd faddp fmadd
        scvtf ucvtf bfdot bfmmla bfcvt bfcvtn2 bfmlalb fjcvtzs""",
    "EM_ARM": """vadd.f32 vmuleq.f64 vmla.f16 vcvt.s32.f32 vcvtb.f32.f16 vcvta.s32.f64 vrinta.f32
        vcmpe.f32 vabs.f32 vneg.f64 vsqrt.f32 vdiv.f32 vfma.f32 vmaxnm.f32 vrsqrte.f32
        vdot.bf16 vcge.f32 vpadd.f32 vjcvt.s32.f64 vcmla.f32""",
}
BENIGN = {
    "EM_AARCH64": """bfi bfxil bfc sdot smmla add mul smull saddlv ldr st1 mov movi dup ins umov cnt
        sqrdmulh addv b.lt bl csel ushll zip1 tbl bsl""",
    "EM_ARM": """vadd.i32 vmull.s8 vpadal.s16 vmov vmov.f32 vmov.i32 vldr vstr vldmia vpush vpop
        vld1.8 vst1.32 vext.8 vtrn.32 vdup.32 vmax.s32 vshr.s32 vqdmulh.s16 vsdot.s8 vseleq.f32
        vmrs vmlal.s16 vrev64.8 vbsl vswp smlad sdiv ssat vctp.8 vrecpe.u32 vmladava.s8""",
}


@pytest.mark.parametrize("machine", FLOATING)
def test_mnemonics_of_floating_point(machine: str) -> None:
    missed = [name for name in FLOATING[machine].split() if not is_floating_point(machine, name)]
    assert missed == []


@pytest.mark.parametrize("machine", BENIGN)
def test_mnemonics_of_integers(machine: str) -> None:
    wrong = [name for name in BENIGN[machine].split() if is_floating_point(machine, name)]
    assert wrong == []


def test_moves_of_registers_and_of_constants_differ() -> None:
    assert not is_floating_point("EM_AARCH64", "fmov", "w0, s0")
    assert not is_floating_point("EM_AARCH64", "fmov", "v0.d[1], x0")
    assert is_floating_point("EM_AARCH64", "fmov", "v0.4s, #2.000000000000000000e+00")


@pytest.mark.parametrize(
    ("mnemonic", "operands"),
    [
        ("vmov", "r0, s0"),
        ("vldr", "d0, [r1]"),
        ("vadd.i32", "q0, q0, q1"),
        ("vmrs", "APSR_nzcv, fpscr"),
        ("ldcl", "11, cr0, [r0]"),
        ("stc", "10, cr0, [r0]"),
        ("cdp", "10, 2, cr0, cr0, cr1, {0}"),
        ("mcr", "p10, 7, r0, cr0, cr0, {0}"),
        ("mrrc", "11, 1, r0, r1, cr0"),
    ],
)
def test_without_a_unit_nothing_of_it_may_be_used(mnemonic: str, operands: str) -> None:
    assert is_floating_point("EM_ARM", mnemonic, operands, has_fpu=False)


@pytest.mark.parametrize(
    ("mnemonic", "operands"),
    [
        ("mcr", "15, 0, r0, cr7, cr10, {5}"),  # a memory barrier of ARMv6
        ("mrc", "15, 0, r0, cr13, cr0, {3}"),  # the thread's pointer
        ("add.w", "r0, r0, #1"),
        ("ldm", "r0, {r1, r2}"),
        ("smlad", "r0, r1, r2, r3"),
    ],
)
def test_without_a_unit_the_rest_is_allowed(mnemonic: str, operands: str) -> None:
    assert not is_floating_point("EM_ARM", mnemonic, operands, has_fpu=False)


def test_a_machine_without_rules_is_an_error() -> None:
    with pytest.raises(ValueError) as caught:
        is_floating_point("EM_RISCV", "fadd.s")
    assert str(caught.value) == "no rules to find floating point in code for EM_RISCV"


HELPERS = """__aeabi_fadd __aeabi_dmul __aeabi_i2f __aeabi_ui2d __aeabi_l2f __aeabi_f2iz
    __aeabi_dcmple __aeabi_cfcmpeq __aeabi_h2f __addsf3 __muldf3 __floatsitf __fixtfsi
    __fixunsdfsi __extendhfsf2 __truncsfhf2 __gnu_f2h_ieee __lesf2 __unorddf2 __powisf2 __mulsc3
    expf sqrt tanhf round"""
INTEGER = """__aeabi_idiv __aeabi_uidivmod __aeabi_ldivmod __aeabi_lmul __aeabi_llsl __aeabi_memcpy
    __aeabi_idiv0 __aeabi_read_tp __divdi3 __muldi3 __clzsi2 __adddi3 __negdi2 __cmpdi2 __ffsdi2
    __divsi3 memset abort truncate expand sqrt_table __aarch64_ldadd4_acq_rel"""


def test_helpers_are_told_from_functions_of_integers() -> None:
    assert [name for name in HELPERS.split() if not is_float_helper(name)] == []
    assert [name for name in INTEGER.split() if is_float_helper(name)] == []
    assert is_float_helper("expf@GLIBC_2.27")
