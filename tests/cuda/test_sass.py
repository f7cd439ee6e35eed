"""Reading machine code of GPUs, and telling floating point from integers in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.targets.cuda.sass import INTEGER_OPCODES, Instruction, functions, is_floating_point

# CUDA Binary Utilities, "Instruction Set Reference", Turing to Blackwell.
FLOATING = """FADD FADD2 FADD32I FCHK FFMA FFMA2 FFMA32I FHADD FHFMA FMNMX FMNMX3 FMUL FMUL2 FMUL32I
    FSEL FSET FSETP FSWZADD HADD2 HADD2_32I HFMA2 HFMA2_32I HMMA HMNMX2 HMUL2 HMUL2_32I HSET2
    HSETP2 VHMNMX DADD DFMA DMMA DMUL DSETP MUFU F2F F2FP F2I F2IP I2F I2FP FRND HGMMA QGMMA QMMA
    OMMA UTCHMMA UTCOMMA UTCQMMA UFADD UFFMA UFMNMX UFMUL UFRND UFSEL UFSET UFSETP UF2F UF2FP UF2I
    UF2IP UI2F UI2FP HFMA2.MMA HFMA2.BF16_V2 F2F.F16.F32 F2I.FTZ.U32.TRUNC.NTZ I2F.RP MUFU.RCP
    RED.E.ADD.F32.FTZ.RN.STRONG.GPU ATOMG.E.ADD.F16x2.RN ATOMS.ADD.F64 REDG.E.ADD.BF16_V2
    CREDUX.MIN.F32.NAN FSETP.GEU.AND"""
INTEGER = """IMMA.8816.S8.S8 IMMA.16832.U8.S8.SAT LDSM.16.M88.4 IDP.4A.S8.S8 FLO.U32 UFLO FENCE.VIEW
    I2IP.S8.S32.SAT IMAD.MOV.U32 IMAD.WIDE.U32 LDG.E.128.CONSTANT ATOMG.E.ADD.S32.STRONG.GPU
    RED.E.ADD.64.STRONG.GPU DEPBAR.LE QSPC PRMT LEA.HI.X.SX32 SHF.R.S64 VIADDMNMX.RELU
    MOVM.16.MT88 BAR.SYNC.DEFER_BLOCKING LDGSTS.E.BYPASS.LTC128B.128"""

TEXT = Path(__file__).with_name("sass.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("mnemonic", FLOATING.split())
def test_floating_point_is_recognised(mnemonic: str) -> None:
    assert is_floating_point(mnemonic)


@pytest.mark.parametrize("mnemonic", INTEGER.split())
def test_integers_are_not_taken_for_floats(mnemonic: str) -> None:
    assert not is_floating_point(mnemonic)
    assert mnemonic.partition(".")[0] in INTEGER_OPCODES


def test_no_opcode_is_in_both_lists() -> None:
    assert [op for op in sorted(INTEGER_OPCODES) if is_floating_point(op)] == []
    assert INTEGER_OPCODES & {word.partition(".")[0] for word in FLOATING.split()} == {
        "ATOMG",
        "ATOMS",
        "CREDUX",
        "RED",
        "REDG",
    }


def test_functions_are_read_with_their_instructions() -> None:
    found = dict(functions(TEXT))
    assert list(found) == ["second", "first"]
    assert found["second"] == [
        Instruction(0, "IMAD.MOV.U32", "R1, RZ, RZ, c[0x0][0x28]"),
        Instruction(16, "BRA", "`(.L_x_0)"),
        Instruction(32, "ULEA", "UR4, UR5, UR4, 0x18"),
        Instruction(48, "EXIT", ""),
    ]
    (move,) = found["first"]
    assert (move.opcode, str(move)) == ("HFMA2", "HFMA2.MMA R3, -RZ, RZ, 0, 2.384185791015625e-07")
