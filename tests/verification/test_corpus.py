"""The audit on known code: for every instruction set it finds all floating point, and no integers.

What makes it worth having is that it misses nothing of the first, and says nothing of the second,
among them integers in floating-point registers and floats that are moved and not computed with.
"""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from ibert_tvm.targets import get_target
from ibert_tvm.targets.cuda.audit import disassemble, read_kernels
from ibert_tvm.targets.cuda.constant_moves import move_constants
from ibert_tvm.targets.cuda.sass import functions
from ibert_tvm.targets.library_audit import audit_library
from ibert_tvm.targets.toolchain import find_linker
from tests.arm.tools import board
from tests.cuda.tools import cuda_toolchain
from tests.verification.corpus import LEVELS, SETS, WITH, WITHOUT, compiled, joined, linked

_DEFAULT = (("AVX2", "-O3"), ("Thumb-1", "-O0"))


def _mark(level: str) -> pytest.MarkDecorator:
    return pytest.mark.slow if level in ("-O0", "-O3") else pytest.mark.record


CASES = [
    pytest.param(*case, marks=() if case in _DEFAULT else _mark(case[1]))
    for case in itertools.product(SETS, LEVELS)
]


@pytest.mark.slow_cases(4)
@pytest.mark.representatives(1)
@pytest.mark.parametrize(("name", "level"), CASES)
def test_no_miss_and_no_false_alarm(name: str, level: str, tmp_path: Path) -> None:
    instructions = SETS[name]
    target = get_target(instructions.target)
    path = tmp_path / "piece.o"
    missed = [
        piece
        for piece, source in WITH.items()
        if not audit_library(compiled(source, instructions, level, path), target).findings
    ]
    assert missed == []
    compiled(joined(WITHOUT), instructions, level, path)
    assert audit_library(path, target).findings == ()
    if "MVE" not in name:  # whose library of the compiler is for other flags than the target's
        linked(joined(WITHOUT), instructions, level, path)
        assert audit_library(path, target).findings == ()


@pytest.mark.parametrize(
    ("name", "word"), [("aarch64-dotprod", "0x02000000"), ("armv7-neon", "0xffffffff")]
)
def test_what_is_no_instruction_is_a_finding(name: str, word: str, tmp_path: Path) -> None:
    target = board(name, run=False)
    (tmp_path / "bad.s").write_text(f".text\nf: .inst {word}\n", encoding="utf-8")
    command = [*find_linker(target), "-c", "bad.s", "-o", "bad.o"]
    subprocess.run(command, cwd=tmp_path, check=True)
    (finding,) = audit_library(tmp_path / "bad.o", target).findings
    assert finding.startswith("f at 0x0: no instruction: ")


# On a GPU integers are divided in floating point, unless by the product's own division.
DIVISIONS = {"division", "wide_division", "square_root", "hidden"}
NOT_FOR_GPUS = {"exponential", "root", "long_double", "complex", "table"}


def _kernels(pieces: dict[str, str], work: Path, architecture: str, level: str) -> dict[str, str]:
    """What is found in device functions, by name of the piece."""
    toolchain = cuda_toolchain()
    text = joined(pieces, 'extern "C" __device__ __noinline__ ')
    (work / "pieces.cu").write_text(text, encoding="utf-8")
    command = [toolchain.nvcc, f"-arch={architecture}", "-rdc=true", f"-Xptxas={level}", "-cubin"]
    subprocess.run([*command, "-o", "pieces.cubin", "pieces.cu"], cwd=work, check=True)
    path = work / "pieces.cubin"
    image, _ = move_constants(path.read_bytes(), functions(disassemble(path, toolchain)))
    path.write_bytes(image)
    audits = read_kernels(disassemble(path, toolchain), image, architecture, {})
    return {audit.name: " ".join((*audit.floating, *audit.unknown)) for audit in audits}


@pytest.mark.parametrize("level", [pytest.param(o, marks=_mark(o)) for o in LEVELS])
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90"])
def test_no_miss_and_no_false_alarm_on_gpus(architecture: str, level: str, tmp_path: Path) -> None:
    pieces = {f"with_{name}": source for name, source in WITH.items() if name not in NOT_FOR_GPUS}
    without = {name: source for name, source in WITHOUT.items() if name not in NOT_FOR_GPUS}
    pieces |= {f"without_{name}": source for name, source in without.items()}
    found = _kernels(pieces, tmp_path, architecture, level)
    assert found.keys() >= pieces.keys()
    wrong = {
        name: found[name]
        for name in pieces
        if bool(found[name]) != (name.startswith("with_") or name[8:] in DIVISIONS)
    }
    assert wrong == {}
