"""Dot products of WebAssembly's vectors: operands of 16 bits, pairs of products added up."""

from __future__ import annotations

from collections.abc import Callable


def _dot(weights: str) -> str:
    """Exact for all operands but a pair of products of -2^15 each, and these are bytes."""
    number = 'T.reinterpret(A.vload([0], dtype="int16x2"), dtype="int32")'
    activations = f'T.reinterpret(T.broadcast({number}, 4), dtype="int16x8")'
    return (
        'C.vload([0], dtype="int32x4") + T.call_llvm_pure_intrin('
        f'"int32x4", "llvm.wasm.dot", {activations}, {weights})'
    )


_WIDENED = _dot('T.cast(B.vload([0, 0], dtype="int8x8"), "int16x8")')
_SHORT = _dot('B.vload([0, 0], dtype="int16x8")')

BODIES: dict[str, Callable[[int], str]] = {
    "i32x4_dot": lambda _groups: _WIDENED,
    "i32x4_dot_short": lambda _groups: _SHORT,
}
"""What an instruction adds to ``C[0:4]``, by its name. All take one group of products."""
