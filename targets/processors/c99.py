"""Any processor with a C99 compiler, of either byte order: packages of sources alone."""

from __future__ import annotations

from ..description import DotInstruction, TargetDescription
from ..machines.c99 import C99 as MACHINE

NO_DOT = DotInstruction("none", "int8", "int8", 1, 1, tile_rows=2, tile_vectors=2)
"""Of kernels that are written in C."""

C99 = TargetDescription(
    name="c99",
    description="C99 sources for any compiler and processor, in either byte order",
    machine=MACHINE,
    tvm_target={"kind": "llvm", "mtriple": "x86_64-linux-gnu", "opt-level": 1},
    dot=NO_DOT,
    vector_lanes=1,
    # Of the check on x86-64: addresses below 2 GB, no register that floats lie in, and frames with
    # room for the arguments of calls.
    compiler_flags=(
        *("-fno-pie", "-no-pie", "-mgeneral-regs-only", "-fcf-protection=none"),
        "-maccumulate-outgoing-args",
    ),
)
