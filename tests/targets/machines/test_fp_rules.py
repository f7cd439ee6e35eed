"""Which instructions of ARM and RISC-V, and which functions of libraries, compute with floats.

On compiled code the audit is tried by `tests.verification.test_corpus`.
"""

from __future__ import annotations

import pytest

from ibert_tvm.targets.machines.aarch64 import AARCH64
from ibert_tvm.targets.machines.arm import ARM
from ibert_tvm.targets.machines.record import Machine
from ibert_tvm.targets.machines.riscv import RISCV32, RISCV64

MACHINES = (AARCH64, ARM, RISCV64)
FLOATING = {
    "aarch64": """fadd fmul fmla fcvtzs fcmp fcsel fmax fsqrt frintn frecpe fabd faddp fmadd
        scvtf ucvtf bfdot bfmmla bfcvt bfcvtn2 bfmlalb fjcvtzs""",
    "arm": """vadd.f32 vmuleq.f64 vmla.f16 vcvt.s32.f32 vcvtb.f32.f16 vcvta.s32.f64 vrinta.f32
        vcmpe.f32 vabs.f32 vneg.f64 vsqrt.f32 vdiv.f32 vfma.f32 vmaxnm.f32 vrsqrte.f32
        vdot.bf16 vcge.f32 vpadd.f32 vjcvt.s32.f64 vcmla.f32""",
    "riscv64": """fadd.s fmul.d fmadd.s fnmsub.q fsqrt.s fcvt.w.s fcvt.s.wu fsgnjx.d fsgnjn.s fmin.s
        feq.s flt.d fle.s fclass.s fneg.s fabs.d fadd.h vfadd.vv vfmacc.vf vfwmul.vv vfcvt.x.f.v
        vmfeq.vv vmflt.vf vfredosum.vs vfrsqrt7.v vfncvt.f.f.w vfslide1up.vf""",
}
BENIGN = {
    "aarch64": """bfi bfxil bfc sdot smmla add mul smull saddlv ldr st1 mov movi dup ins umov cnt
        sqrdmulh addv b.lt bl csel ushll zip1 tbl bsl""",
    "arm": """vadd.i32 vmull.s8 vpadal.s16 vmov vmov.f32 vmov.i32 vldr vstr vldmia vpush vpop
        vld1.8 vst1.32 vext.8 vtrn.32 vdup.32 vmax.s32 vshr.s32 vqdmulh.s16 vsdot.s8 vseleq.f32
        vmrs vmlal.s16 vrev64.8 vbsl vswp smlad sdiv ssat vctp.8 vrecpe.u32 vmladava.s8""",
    "riscv64": """fence fence.i fence.tso flw fsd c.fldsp fmv.x.w fmv.d frcsr fscsr fsgnj.s vfirst.m
        vfmv.v.f vfmerge.vfm vadd.vv vwmul.vx vredsum.vs mul mulh lw sb add bne jal""",
}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_mnemonics_of_floating_point(machine: Machine) -> None:
    names = FLOATING[machine.name].split()
    missed = [name for name in names if not machine.is_floating_point(name, "", True)]
    assert missed == []


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_mnemonics_of_integers(machine: Machine) -> None:
    names = BENIGN[machine.name].split()
    wrong = [name for name in names if machine.is_floating_point(name, "", True)]
    assert wrong == []


def test_moves_of_registers_and_of_constants_differ() -> None:
    assert not AARCH64.is_floating_point("fmov", "w0, s0", True)
    assert not AARCH64.is_floating_point("fmov", "v0.d[1], x0", True)
    assert AARCH64.is_floating_point("fmov", "v0.4s, #2.000000000000000000e+00", True)


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
    assert ARM.is_floating_point(mnemonic, operands, False)


@pytest.mark.parametrize("mnemonic", ["flw", "fsd", "fmv.x.w", "fsgnj.s", "frcsr", "vfmv.v.f"])
def test_without_a_unit_risc_v_may_not_even_move(mnemonic: str) -> None:
    assert RISCV32.is_floating_point(mnemonic, "", False)
    assert not RISCV32.is_floating_point("fence", "rw, rw", False)


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
    assert not ARM.is_floating_point(mnemonic, operands, False)


HELPERS = """__aeabi_fadd __aeabi_dmul __aeabi_i2f __aeabi_ui2d __aeabi_l2f __aeabi_f2iz
    __aeabi_dcmple __aeabi_cfcmpeq __aeabi_h2f __addsf3 __muldf3 __floatsitf __fixtfsi
    __fixunsdfsi __extendhfsf2 __truncsfhf2 __gnu_f2h_ieee __lesf2 __unorddf2 __powisf2 __mulsc3
    expf sqrt tanhf round"""
INTEGER = """__aeabi_idiv __aeabi_uidivmod __aeabi_ldivmod __aeabi_lmul __aeabi_llsl __aeabi_memcpy
    __aeabi_idiv0 __aeabi_read_tp __divdi3 __muldi3 __clzsi2 __adddi3 __negdi2 __cmpdi2 __ffsdi2
    __divsi3 memset abort truncate expand sqrt_table __aarch64_ldadd4_acq_rel"""


def test_helpers_are_told_from_functions_of_integers() -> None:
    assert [name for name in HELPERS.split() if not ARM.is_float_function(name)] == []
    assert [name for name in INTEGER.split() if ARM.is_float_function(name)] == []
    assert ARM.is_float_function("expf@GLIBC_2.27")
