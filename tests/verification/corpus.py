"""Pieces of C with floating point and without, compiled for each instruction set."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ibert_tvm.targets import TargetDescription
from ibert_tvm.targets.bare_metal import verification
from ibert_tvm.targets.linking import PLAIN_BRANCHES, PROTECTED
from ibert_tvm.targets.toolchain import find_linker
from tests.arm.tools import board


def _pieces(name: str) -> dict[str, str]:
    """Pieces of a file by their names, which stand in a comment before each."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    parts = re.split(r"^// (\w+)\n", text, flags=re.MULTILINE)
    return {name: source.strip() for name, source in zip(parts[1::2], parts[2::2], strict=True)}


WITH, WITHOUT = _pieces("with_floats.c"), _pieces("without_floats.c")


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
    "RV32": InstructionSet("rv32imc"),
    "RV64": InstructionSet("rv64gc"),
    "MVE": InstructionSet("cortex-m55", _MVE),
    "MVE of floats": InstructionSet("cortex-m55", _MVE_OF_FLOATS),
}
# What the pieces, and the compiler's library for a division by zero, call.
_CALLED = """
const short t[256];
void raise(void) {}
void *memcpy(void *a, const void *b, __SIZE_TYPE__ n) {
    for (char *to = a; n--; ) *to++ = *(const char *)b++;
    return a;
}
void *memset(void *a, int b, __SIZE_TYPE__ n) {
    for (char *to = a; n--; ) *to++ = b;
    return a;
}
"""
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


def link_flags(target: TargetDescription) -> list[str]:
    """Options that link a library, or the image of a microcontroller, as the product does."""
    if target.system == "linux":
        return ["-nostdlib", "-shared", "-fPIC", *PROTECTED]
    script = Path(verification.__file__).with_name("verify.ld")
    return ["-nostdlib", f"-T{script}", "-Wl,--emit-relocs", "-Wl,-z,noexecstack"]


def linked(source: str, instructions: InstructionSet, level: str, path: Path) -> Path:
    """As `compiled`, and linked with what the source and the compiler's library call."""
    target = board(instructions.target, run=False)
    flags = [*instructions.flags, level, "-ffreestanding", *PLAIN_BRANCHES, *link_flags(target)]
    command = [*find_linker(target), *flags, "-x", "c", "-", "-lgcc", "-o", str(path)]
    subprocess.run(command, input=(_CALLED + source).encode(), check=True)
    return path


def joined(pieces: dict[str, str], before: str = "") -> str:
    """One source of several pieces, with a function of the piece's name in the place of ``f``."""
    return "".join(
        f"#define f {name}\n{before}{source}\n#undef f\n" for name, source in pieces.items()
    )
