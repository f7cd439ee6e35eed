"""Transposing keys and values for the dot product, by shuffles."""

from __future__ import annotations

from .registration import ANY_ROWS, Operand, Sources, nest, sources_of

# Packing of keys and values where a vector holds a few lanes: registers are zipped in pairs.
#
# Told the whole transposition at once, as `packing` does it for wide vectors, the compiler moves
# numbers one by one, or looks bytes up in tables. Zipping says what ARM has an instruction for.


def interleaved(rows: list[str], count: int) -> list[str]:
    """Interleave vectors: first the entries 0 of all rows, then the entries 1, and so on.

    Parameters
    ----------
    rows
        Expressions of vectors; a power of two of them.
    count
        Entries of each.

    Returns
    -------
    list of str
        As many expressions of vectors, in order.
    """
    if len(rows) == 1:
        return rows
    result = []
    for a, b in zip(interleaved(rows[::2], count), interleaved(rows[1::2], count), strict=True):
        for start in (0, count // 2):
            order = [entry for i in range(start, start + count // 2) for entry in (i, count + i)]
            result.append(f"T.Shuffle([{a}, {b}], {order})")
    return result


def zipped_key_sources(lanes: int, depth: int) -> Sources:
    """Text of the description and of the implementation of packing `lanes` keys.

    As `packing.key_packing_sources`, whose description it has.
    """
    stores = []
    for place, vector in enumerate(interleaved(key_rows(lanes, depth), LOADED_BYTES // depth)):
        group, rest = divmod(place * LOADED_BYTES, lanes * depth)
        stores.append(
            f"C.vstore([{group}, {rest // depth}, 0], "
            f'T.reinterpret({vector}, dtype="int8x{LOADED_BYTES}"))'
        )
    return packed_keys("zip_keys", lanes, depth, stores)


def zipped_value_sources(lanes: int, depth: int, dtype: str = "int8") -> Sources:
    """Text of the description and of the implementation of packing `depth` tokens of V.

    ``C[b, 0, l, i] = A[i, b lanes + l]``: several blocks of columns, as many as a load has.
    """
    loaded = loaded_values(dtype)
    blocks, block = loaded // lanes, lanes * depth
    operands = {
        "A": Operand((depth, loaded), dtype, ANY_ROWS),
        "C": Operand((blocks, 1, lanes, depth), dtype, f"[T.int32(), {block}, {depth}, 1]"),
    }
    rows = [f'A.vload([{row}, 0], dtype="{dtype}x{loaded}")' for row in range(depth)]
    stored = min(block, loaded)
    stores = []
    for place, vector in enumerate(interleaved(rows, loaded)):
        for start in range(0, loaded, stored):
            number, rest = divmod(place * loaded + start, block)
            part = vector
            if stored < loaded:
                part = f"T.Shuffle([{vector}], {list(range(start, start + stored))})"
            stores.append(f"C.vstore([{number}, 0, {rest // depth}, 0], {part})")
    statement = f"C[vb, 0, vl, vi] = A[vi, vb * {lanes} + vl]"
    loops = nest(statement, b=blocks, l=lanes, i=depth)
    name = f"zip_values_{lanes}x{depth}" + ("" if dtype == "int8" else f"_{dtype}")
    return sources_of(name, operands, loops, stores, accumulates=False)


def loaded_values(dtype: str) -> int:
    """Entries of V that its packing loads at once."""
    return LOADED_BYTES * 8 // int(dtype.removeprefix("int"))


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
