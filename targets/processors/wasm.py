"""WebAssembly with vectors of 128 bits, which all browsers have had since 2023."""

from __future__ import annotations

from ..description import DotInstruction, TargetDescription
from ..machines.wasm32 import WASM32 as MACHINE

# Two products per accumulator, of operands widened to 16 bits. Engines have 16 registers on x86-64
# and 32 on ARM.
DOT = DotInstruction(
    "i32x4_dot", "int16", "int8", 4, 2, tile_rows=4, tile_vectors=2, short="i32x4_dot_short"
)

WASM32 = TargetDescription(
    name="wasm32",
    description="WebAssembly with SIMD128, for browsers and Node.js",
    machine=MACHINE,
    tvm_target={
        "kind": "llvm",
        "mtriple": "wasm32-unknown-unknown",
        "mattr": ["+simd128", "+bulk-memory", "+sign-ext"],
        # The third level unrolls more: 1.7 times the code, which is no faster.
        "opt-level": 2,
        "vector-width": 128,
        # It makes addresses of sums that may wrap, which no load takes as its constant offset.
        "cl-opt": ["-disable-lsr"],
    },
    dot=DOT,
    vector_lanes=8,
    q15_multiply=((8, "llvm.wasm.q15mulr.sat.signed"),),
    functions=("uniform_shift",),
    compiler_flags=(
        *("-msimd128", "-mbulk-memory", "-msign-ext", "-matomics", "-mmutable-globals"),
    ),
    emulated="V8",
)
