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


def _half(vector: str, half: int) -> str:
    return f"T.Shuffle([{vector}], {list(range(8 * half, 8 * half + 8))})"


def _sdot(groups: int) -> str:
    total = _accumulators()
    number = f"int32x{groups}" if groups > 1 else "int32"
    loaded = f'T.reinterpret(A.vload([0], dtype="int8x{4 * groups}"), dtype="{number}")'
    for group in range(groups):
        # Of several groups, each is taken from a lane of the register by the instruction itself.
        one = loaded if groups == 1 else f"T.Shuffle([{loaded}], [{group}])"
        activations = f'T.reinterpret(T.broadcast({one}, {_LANES}), dtype="int8x16")'
        total = (
            'T.call_llvm_pure_intrin("int32x4", "llvm.aarch64.neon.sdot.v4i32.v16i8", '
            f"{total}, {_weights(group, groups, 16)}, {activations})"
        )
    return total


def _repeated(group: int, groups: int) -> str:
    """The two activations of a group, four times; all groups are loaded at once."""
    number = f"int16x{groups}" if groups > 1 else "int16"
    pair = f'T.reinterpret(A.vload([0], dtype="int8x{2 * groups}"), dtype="{number}")'
    if groups > 1:
        pair = f"T.Shuffle([{pair}], [{group}])"
    return f'T.reinterpret(T.broadcast({pair}, {_LANES}), dtype="int8x8")'


def _side_by_side(group: int) -> str:
    """The activations of two groups, each four times: one look-up in a loaded register.

    Said as a shuffle, it would be taken apart into two.
    """
    four = f'T.reinterpret(A.vload([{2 * group}], dtype="int8x4"), dtype="int32")'
    table = f'T.reinterpret(T.broadcast({four}, {_LANES}), dtype="int8x16")'
    words = ", ".join(f"T.broadcast(T.int32({word}), 2)" for word in (0x01000100, 0x03020302))
    places = f'T.reinterpret(T.Shuffle([{words}], [0, 1, 2, 3]), dtype="int8x16")'
    name = "llvm.aarch64.neon.tbl1.v16i8"
    return f'T.call_llvm_pure_intrin("int8x16", "{name}", {table}, {places})'


def _products(multiply: str, group: int, groups: int, looked_up: bool) -> tuple[str, ...]:
    """Products of one group, or of two that lie side by side: eight of 16 bits each."""
    if groups == 1:
        operands = [(_repeated(0, 1), _weights(0, 1, 8))]
    else:
        weights = _weights(group, groups, 16)
        if looked_up:
            both = _side_by_side(group)
            activations = [_half(both, half) for half in (0, 1)]
        else:
            activations = [_repeated(group + half, groups) for half in (0, 1)]
        operands = [(activations[half], _half(weights, half)) for half in (0, 1)]
    return tuple(f'T.call_llvm_pure_intrin("int16x8", "{multiply}", {a}, {b})' for a, b in operands)


def _by_pairs(
    multiply: str, accumulate: Callable[[str, str], str], in_short: bool, looked_up: bool
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
    looked_up
        Whether a look-up in a table repeats activations, a whole register at a time.
    """

    def body(groups: int) -> str:
        total = _accumulators()
        for group in range(0, groups, 2):
            products = _products(multiply, group, groups, looked_up)
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
    "smlal_sadalp": _by_pairs(_SMULL, _sadalp, in_short=True, looked_up=True),
    "smull_sadalp": _by_pairs(_SMULL, _sadalp, in_short=False, looked_up=True),
    "vmlal_vpadal": _by_pairs(_VMULL, _vpadal, in_short=True, looked_up=False),
    "vmull_vpadal": _by_pairs(_VMULL, _vpadal, in_short=False, looked_up=False),
}
"""What so many groups of products add to ``C[0:4]``, by the instruction's name."""


def _smmla() -> list[str]:
    stores = []
    for pair in range(_LANES // 2):
        weights = f'B.vload([{2 * pair}, 0], dtype="int8x16")'
        stores.append(
            f"C.vstore([{pair}, 0, 0], T.call_llvm_pure_intrin("
            '"int32x4", "llvm.aarch64.neon.smmla.v4i32.v16i8", '
            f'C.vload([{pair}, 0, 0], dtype="int32x4"), A.vload([0, 0], dtype="int8x16"), '
            f"{weights}))"
        )
    return stores


MATRIX_BODIES: dict[str, list[str]] = {"smmla": _smmla()}
"""Statements that add products of two rows by four columns to ``C[2, 2, 2]``."""
