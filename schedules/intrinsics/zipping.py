"""Packing of keys and values where a vector holds a few lanes: registers are zipped in pairs.

Told the whole transposition at once, as `packing` does it for wide vectors, the compiler moves
numbers one by one, or looks bytes up in tables. Zipping says what ARM has an instruction for.
"""

from __future__ import annotations

from functools import cache

from .packing import LOADED_BYTES, key_packing_sources
from .registration import Sources, register, sources_of

_VALUES = """
@T.prim_func(s_tir=True)
def {which}(
    A: T.Buffer(({depth}, {columns}), "int8", offset_factor=1, strides=[T.int32(), 1]),
    C: T.Buffer(
        ({blocks}, 1, {lanes}, {depth}),
        "int8",
        offset_factor=1,
        strides=[T.int32(), {block}, {depth}, 1],
    ),
) -> None:
    with T.sblock("root"):
        T.reads(A[0:{depth}, 0:{columns}])
        T.writes(C[0:{blocks}, 0, 0:{lanes}, 0:{depth}])
        {body}
"""

_VALUES_BY_LOOPS = """for b, l, i in T.grid({blocks}, {lanes}, {depth}):
            with T.sblock("update"):
                vb, vl, vi = T.axis.remap("SSS", [b, l, i])
                C[vb, 0, vl, vi] = A[vi, vb * {lanes} + vl]"""


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
    description, other = key_packing_sources(lanes, depth)
    number, count = f"int{8 * depth}", LOADED_BYTES // depth
    rows = [
        f'T.reinterpret(A.vload([{row}, 0], dtype="int8x{LOADED_BYTES}"), dtype="{number}x{count}")'
        for row in range(lanes)
    ]
    stores = []
    for place, vector in enumerate(interleaved(rows, count)):
        group, rest = divmod(place * LOADED_BYTES, lanes * depth)
        stores.append(
            f"C.vstore([{group}, {rest // depth}, 0], "
            f'T.reinterpret({vector}, dtype="int8x{LOADED_BYTES}"))'
        )
    head, _, _ = other.partition("        C.vstore")
    return description, head + "        " + "\n        ".join(stores) + "\n"


def zipped_value_sources(lanes: int, depth: int) -> Sources:
    """Text of the description and of the implementation of packing `depth` tokens of V.

    ``C[b, 0, l, i] = A[i, b lanes + l]``: several blocks of columns, as many as a load has.
    """
    blocks, block = LOADED_BYTES // lanes, lanes * depth
    shape = {
        "blocks": blocks,
        "block": block,
        "columns": LOADED_BYTES,
        "lanes": lanes,
        "depth": depth,
    }
    rows = [f'A.vload([{row}, 0], dtype="int8x{LOADED_BYTES}")' for row in range(depth)]
    stored = min(block, LOADED_BYTES)
    stores = []
    for place, vector in enumerate(interleaved(rows, LOADED_BYTES)):
        for start in range(0, LOADED_BYTES, stored):
            number, rest = divmod(place * LOADED_BYTES + start, block)
            part = vector
            if stored < LOADED_BYTES:
                part = f"T.Shuffle([{vector}], {list(range(start, start + stored))})"
            stores.append(f"C.vstore([{number}, 0, {rest // depth}, 0], {part})")
    loops = _VALUES_BY_LOOPS.format(**shape)
    return sources_of(_VALUES, loops, "\n        ".join(stores), **shape)


@cache
def zipped_key_intrinsic(lanes: int, depth: int) -> str:
    """Register `zipped_key_sources` with TVM once; return the intrinsic's name."""
    return register(f"ibert.zip_keys_{lanes}x{depth}", zipped_key_sources(lanes, depth))


@cache
def zipped_value_intrinsic(lanes: int, depth: int) -> str:
    """Register `zipped_value_sources` with TVM once; return the intrinsic's name."""
    return register(f"ibert.zip_values_{lanes}x{depth}", zipped_value_sources(lanes, depth))
