"""Moves of constants that ptxas gives to the unit for floats, written anew as moves."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from ibert_tvm.targets.cuda.audit import disassemble
from ibert_tvm.targets.cuda.constant_moves import is_constant_move, move_constants
from ibert_tvm.targets.cuda.sass import Instruction, functions
from tests.cuda.tools import cuda_toolchain
from tests.examples import examples

# Constants that no immediate operand has room for, and multiplications that keep other units busy.
SOURCE = Path(__file__).with_name("constant_moves.cu")
BYTES = 16
MASK = (1 << 41) - 1


def _text(image: bytes, path: Path) -> list[tuple[str, list[Instruction]]]:
    path.write_bytes(image)
    return list(functions(disassemble(path, cuda_toolchain())))


def _code(image: bytes, path: Path) -> list[tuple[int, int]]:
    """Instructions of the only function as two numbers of 64 bits."""
    path.write_bytes(image)
    with path.open("rb") as stream:
        data = ELFFile(stream).get_section_by_name(".text.scale").data()
    return [struct.unpack_from("<QQ", data, place) for place in range(0, len(data), BYTES)]


@pytest.mark.parametrize("architecture", examples(["sm_80", "sm_90", "sm_100", "sm_120"], "sm_90"))
@pytest.mark.slow
def test_constants_are_moved_without_the_unit_for_floats(architecture: str, tmp_path: Path) -> None:
    toolchain = cuda_toolchain()
    path = tmp_path / "kernels.cubin"
    command = [toolchain.nvcc, "-O3", f"-arch={architecture}", "-cubin", "-o", str(path)]
    subprocess.run([*command, str(SOURCE)], check=True)
    image = path.read_bytes()
    ((_, before),) = _text(image, path)
    moves = [i for i, instruction in enumerate(before) if is_constant_move(instruction)]
    assert moves, "this version of ptxas writes none; the test needs another kernel"

    changed, count = move_constants(image, [("scale", before)])
    assert count == len(moves)
    assert len(changed) == len(image)
    ((_, after),) = _text(changed, path)
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        if i not in moves:
            assert str(old) == str(new)
            continue
        register, _, _, high, low = old.operands.split(", ")
        value = np.array([float(low), float(high)], np.float16).view("<u4")[0]
        assert new.mnemonic == "IMAD.MOV.U32"
        target, *zeros, constant = new.operands.split(", ")
        assert (target, zeros) == (register, ["RZ", "RZ"])
        assert int(constant, 16) % 2**32 == value

    # How instructions are issued: nothing but waiting changes, and only to more of it.
    pairs = list(zip(_code(image, path), _code(changed, path), strict=True))
    for i, ((low, high), (new_low, new_high)) in enumerate(pairs):
        wait, new_wait = high >> 41 & 15, new_high >> 41 & 15
        assert high >> 45 == new_high >> 45
        if i in moves:
            assert new_wait >= min(wait + 2, 11)
        else:
            assert (low, high & MASK) == (new_low, new_high & MASK)
            assert new_wait == (max(wait, 2) if i + 1 in moves else wait)
    _check_form(before, after, pairs, moves)
    again, count = move_constants(changed, [("scale", after)])
    assert (again, count) == (changed, 0)


def _check_form(
    before: list[Instruction],
    after: list[Instruction],
    pairs: list[tuple[tuple[int, int], tuple[int, int]]],
    moves: list[int],
) -> None:
    """Moves are encoded as ptxas encodes its own, and nothing uses a result early."""
    own = [i for i, x in enumerate(before) if OWN_MOVE.fullmatch(str(x))]
    for i in own:
        low, high = pairs[i][0]
        assert (low & 0xFF000FFF, high & MASK) == FORM
    for i in moves:
        low, high = pairs[i][1]
        assert (low & 0xFF000FFF, high & MASK) == FORM
        register = after[i].operands.split(",")[0]
        cycles = 0
        for k in range(i, len(after) - 1):
            cycles += pairs[k][1][1] >> 41 & 15
            if after[k].opcode in ("BRA", "EXIT") or cycles >= LATENCY:
                break
            assert not re.search(rf"\b{register}\b", after[k + 1].operands.partition(",")[2])


# An IMAD's result is used 5 cycles later by other instructions than IMAD; two are margin.
LATENCY = 7
# IMAD.MOV.U32 with an immediate as ptxas writes it: opcode and first operand; modifiers.
OWN_MOVE = re.compile(r"IMAD\.MOV\.U32 R\d+, RZ, RZ, -?0x[0-9a-f]+")
FORM = (0xFF000424, 0x078E00FF)


@pytest.mark.parametrize(
    ("mnemonic", "operands", "expected"),
    [
        ("HFMA2.MMA", "R5, -RZ, RZ, 0, 2.384185791015625e-07", True),
        ("HFMA2", "R5, -RZ, RZ, -2882, +QNAN", True),
        ("HFMA2.MMA", "R5, -RZ, RZ, R7, R8", False),
        ("HFMA2", "R5, R4, R6, 1, 1", False),
        ("HFMA2.MMA", "R5, RZ, RZ, 0, 0", False),
        ("HFMA2.BF16_V2", "R5, -RZ, RZ, 0, 0", False),
        ("IMAD.MOV.U32", "R5, RZ, RZ, 0x4", False),
    ],
)
def test_only_moves_of_constants_are_taken_for_such(
    mnemonic: str, operands: str, expected: bool
) -> None:
    assert is_constant_move(Instruction(0, mnemonic, operands)) is expected
