"""Transposing keys and values for the dot product, by shuffles."""

from __future__ import annotations

from functools import cache

from .registration import Sources, register, sources_of

LOADED_BYTES = 16
"""Bytes of a key's channels that its packing loads at once."""

_PACKING = """
@T.prim_func(s_tir=True)
def {which}(
    A: T.Buffer({source}, "{dtype}", offset_factor=1, strides=[T.int32(), 1]),
    C: T.Buffer({packed}, "{dtype}", offset_factor=1),
) -> None:
    with T.sblock("root"):
        T.reads(A[0:{rows}, 0:{columns}])
        T.writes(C[{region}])
        {body}
"""

_KEYS_BY_LOOPS = """for c, l, i in T.grid({group}, {lanes}, {depth}):
            with T.sblock("update"):
                vc, vl, vi = T.axis.remap("SSS", [c, l, i])
                C[vc, vl, vi] = A[vl, vc * {depth} + vi]"""

_VALUES_BY_LOOPS = """for l, i in T.grid({lanes}, {depth}):
            with T.sblock("update"):
                vl, vi = T.axis.remap("SS", [l, i])
                C[vl, vi] = A[vi, vl]"""


def key_packing_sources(lanes: int, depth: int) -> Sources:
    """Text of the description and of the implementation of packing `lanes` keys.

    ``C[c, l, i] = A[l, c depth + i]``: groups of `depth` channels are transposed as numbers.
    """
    group = LOADED_BYTES // depth
    shape = {
        "dtype": "int8",
        "source": f"({lanes}, {LOADED_BYTES})",
        "packed": f"({group}, {lanes}, {depth})",
        "rows": lanes,
        "columns": LOADED_BYTES,
        "region": f"0:{group}, 0:{lanes}, 0:{depth}",
    }
    loops = _KEYS_BY_LOOPS.format(group=group, lanes=lanes, depth=depth)
    number = f"int{8 * depth}"
    rows = ", ".join(
        f'T.reinterpret(A.vload([{row}, 0], dtype="int8x{LOADED_BYTES}"), dtype="{number}x{group}")'
        for row in range(lanes)
    )
    stores = [
        f"C.vstore([{c}, 0, 0], T.reinterpret(T.Shuffle([{rows}], "
        f'{[row * group + c for row in range(lanes)]}), dtype="int8x{lanes * depth}"))'
        for c in range(group)
    ]
    return sources_of(_PACKING, loops, "\n        ".join(stores), **shape)


def value_packing_sources(lanes: int, depth: int, dtype: str = "int8") -> Sources:
    """Text of the description and of the implementation of packing `depth` tokens of V.

    ``C[l, i] = A[i, l]``: the entries of `depth` tokens are interleaved.
    """
    shape = {
        "dtype": dtype,
        "source": f"({depth}, {lanes})",
        "packed": f"({lanes}, {depth})",
        "rows": depth,
        "columns": lanes,
        "region": f"0:{lanes}, 0:{depth}",
    }
    loops = _VALUES_BY_LOOPS.format(lanes=lanes, depth=depth)
    rows = ", ".join(f'A.vload([{row}, 0], dtype="{dtype}x{lanes}")' for row in range(depth))
    order = [row * lanes + lane for lane in range(lanes) for row in range(depth)]
    store = f"C.vstore([0, 0], T.Shuffle([{rows}], {order}))"
    return sources_of(_PACKING, loops, store, **shape)


@cache
def key_packing_intrinsic(lanes: int, depth: int) -> str:
    """Register `key_packing_sources` with TVM once; return the intrinsic's name."""
    return register(f"ibert.pack_keys_{lanes}x{depth}", key_packing_sources(lanes, depth))


@cache
def value_packing_intrinsic(lanes: int, depth: int, dtype: str = "int8") -> str:
    """Register `value_packing_sources` with TVM once; return the intrinsic's name."""
    name = f"ibert.pack_values_{lanes}x{depth}" + ("" if dtype == "int8" else f"_{dtype}")
    return register(name, value_packing_sources(lanes, depth, dtype))
