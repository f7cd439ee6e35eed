"""Dot products of ARM's vector instructions, 64 and 32 bits.

* ``sdot`` (ARMv8.2 dot products): four products per lane, the activations taken from a lane of a
  register, so that one load serves four instructions per weight vector.
* ``smmla`` (ARMv8.6 matrix products): two rows by two columns, eight products each.
* ``smlal_sadalp`` (any NEON): products of 16 bits, two of them added up in 16 bits, and pairs of
  these sums added to 32-bit lanes. Two products fit 16 bits unless all four factors are -128:
  2 * 127 * 128 = 32512. ``smull_sadalp`` adds each product to 32 bits and takes any factors.

A group of ``smlal_sadalp`` has two products, so that packed weights hold four columns of two and
the two groups of an instruction lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable

_LANES = 4


def _accumulators() -> str:
    return 'C.vload([0], dtype="int32x4")'


def _weights(group: int, groups: int, count: int) -> str:
    """Load `count` weights, from those of a group on."""
    place = "[0, 0]" if groups == 1 else f"[{group}, 0, 0]"
    return f'B.vload({place}, dtype="int8x{count}")'


def _repeated(group: int, groups: int, depth: int, times: int) -> str:
    """Activations of a group, repeated, as bytes; all groups are loaded at once."""
    number, count = f"int{8 * depth}", depth * groups
    if groups == 1:
        one = f'T.reinterpret(A.vload([0], dtype="int8x{depth}"), dtype="{number}")'
        repeated = f"T.broadcast({one}, {times})"
    else:
        loaded = f'T.reinterpret(A.vload([0], dtype="int8x{count}"), dtype="{number}x{groups}")'
        repeated = f"T.broadcast(T.Shuffle([{loaded}], [{group}]), {times})"
    return f'T.reinterpret({repeated}, dtype="int8x{depth * times}")'


def _half(vector: str, half: int) -> str:
    return f"T.Shuffle([{vector}], {list(range(8 * half, 8 * half + 8))})"


def _sdot(groups: int) -> str:
    total = _accumulators()
    for group in range(groups):
        weights, activations = _weights(group, groups, 16), _repeated(group, groups, 4, _LANES)
        total = (
            'T.call_llvm_pure_intrin("int32x4", "llvm.aarch64.neon.sdot.v4i32.v16i8", '
            f"{total}, {weights}, {activations})"
        )
    return total


def _products(multiply: str, group: int, groups: int) -> tuple[str, ...]:
    """Products of one group, or of two that lie side by side: eight of 16 bits each."""
    if groups == 1:
        operands = [(_repeated(0, 1, 2, _LANES), _weights(0, 1, 8))]
    else:
        weights = _weights(group, groups, 16)
        operands = [
            (_repeated(group + half, groups, 2, _LANES), _half(weights, half)) for half in (0, 1)
        ]
    return tuple(f'T.call_llvm_pure_intrin("int16x8", "{multiply}", {a}, {b})' for a, b in operands)


def _by_pairs(
    multiply: str, accumulate: Callable[[str, str], str], in_short: bool
) -> Callable[[int], str]:
    """Multiply in 16 bits, add pairs up in 32.

    Parameters
    ----------
    multiply
        Intrinsic of the product.
    accumulate
        Adds pairs of eight 16-bit numbers to four of 32 bits.
    in_short
        Whether to add the products of two groups in 16 bits.
    """

    def body(groups: int) -> str:
        total = _accumulators()
        for group in range(0, groups, 2):
            products = _products(multiply, group, groups)
            for added in (" + ".join(products),) if in_short else products:
                total = accumulate(total, added)
        return total

    return body


def _sadalp(total: str, products: str) -> str:
    name = "llvm.aarch64.neon.saddlp.v4i32.v8i16"
    return f'({total} + T.call_llvm_pure_intrin("int32x4", "{name}", {products}))'


def _vpadal(total: str, products: str) -> str:
    name = "llvm.arm.neon.vpadals.v4i32.v8i16"
    return f'T.call_llvm_pure_intrin("int32x4", "{name}", {total}, {products})'


_SMULL = "llvm.aarch64.neon.smull.v8i16"
_VMULL = "llvm.arm.neon.vmulls.v8i16"

BODIES: dict[str, Callable[[int], str]] = {
    "sdot": _sdot,
    "smlal_sadalp": _by_pairs(_SMULL, _sadalp, in_short=True),
    "smull_sadalp": _by_pairs(_SMULL, _sadalp, in_short=False),
    "vmlal_vpadal": _by_pairs(_VMULL, _vpadal, in_short=True),
    "vmull_vpadal": _by_pairs(_VMULL, _vpadal, in_short=False),
}
"""What so many groups of products add to ``C[0:4]``, by the instruction's name."""


def _smmla(groups: int) -> str:
    stores = []
    for pair in range(_LANES // 2):
        total = f'C.vload([{pair}, 0, 0], dtype="int32x4")'
        for group in range(groups):
            total = (
                'T.call_llvm_pure_intrin("int32x4", "llvm.aarch64.neon.smmla.v4i32.v16i8", '
                f'{total}, A.vload([{group}, 0, 0], dtype="int8x16"), '
                f'B.vload([{group}, {2 * pair}, 0], dtype="int8x16"))'
            )
        stores.append(f"C.vstore([{pair}, 0, 0], {total})")
    return "\n        ".join(stores)


MATRIX_BODIES: dict[str, Callable[[int], str]] = {"smmla": _smmla}
"""Statements that add products of two rows by four columns to ``C[2, 2, 2]``."""
