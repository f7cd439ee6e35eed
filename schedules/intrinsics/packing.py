"""Transposing keys and values for the dot product, by shuffles."""

from __future__ import annotations

from .registration import ANY_ROWS, Operand, Sources, nest, sources_of

LOADED_BYTES = 16
"""Bytes of a key's channels that its packing loads at once."""


def key_packing_sources(lanes: int, depth: int) -> Sources:
    """Text of the description and of the implementation of packing `lanes` keys.

    ``C[c, l, i] = A[l, c depth + i]``: groups of `depth` channels are transposed as numbers.
    """
    group, vectors = LOADED_BYTES // depth, ", ".join(key_rows(lanes, depth))
    stores = [
        f"C.vstore([{c}, 0, 0], T.reinterpret(T.Shuffle([{vectors}], "
        f'{[row * group + c for row in range(lanes)]}), dtype="int8x{lanes * depth}"))'
        for c in range(group)
    ]
    return packed_keys("pack_keys", lanes, depth, stores)


def key_rows(lanes: int, depth: int) -> list[str]:
    """Loads of `lanes` keys, as vectors of numbers of `depth` bytes."""
    number = f"int{8 * depth}x{LOADED_BYTES // depth}"
    loads = (f'A.vload([{row}, 0], dtype="int8x{LOADED_BYTES}")' for row in range(lanes))
    return [f'T.reinterpret({load}, dtype="{number}")' for load in loads]


def packed_keys(kind: str, lanes: int, depth: int, stores: list[str]) -> Sources:
    """Both functions of an intrinsic that packs keys, with these statements."""
    group = LOADED_BYTES // depth
    operands = {
        "A": Operand((lanes, LOADED_BYTES), "int8", ANY_ROWS),
        "C": Operand((group, lanes, depth), "int8"),
    }
    loops = nest(f"C[vc, vl, vi] = A[vl, vc * {depth} + vi]", c=group, l=lanes, i=depth)
    return sources_of(f"{kind}_{lanes}x{depth}", operands, loops, stores, accumulates=False)


def value_packing_sources(lanes: int, depth: int, dtype: str = "int8") -> Sources:
    """Text of the description and of the implementation of packing `depth` tokens of V.

    ``C[l, i] = A[i, l]``: the entries of `depth` tokens are interleaved.
    """
    operands = {"A": Operand((depth, lanes), dtype, ANY_ROWS), "C": Operand((lanes, depth), dtype)}
    rows = ", ".join(f'A.vload([{row}, 0], dtype="{dtype}x{lanes}")' for row in range(depth))
    order = [row * lanes + lane for lane in range(lanes) for row in range(depth)]
    store = f"C.vstore([0, 0], T.Shuffle([{rows}], {order}))"
    loops = nest("C[vl, vi] = A[vi, vl]", l=lanes, i=depth)
    name = f"pack_values_{lanes}x{depth}" + ("" if dtype == "int8" else f"_{dtype}")
    return sources_of(name, operands, loops, [store], accumulates=False)
