"""KernelLayout: tiles that pad least, packing that loses nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.emit import KernelLayout

layouts = st.builds(
    KernelLayout,
    st.sampled_from(["int8", "uint8", "int16"]),
    st.sampled_from([1, 4, 8, 16]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 14),
)


@given(layouts, st.integers(1, 600))
def test_a_row_tile_fits_the_registers_and_pads_least(layout: KernelLayout, rows: int) -> None:
    tile, padded = layout.row_tile(rows)
    assert 1 <= tile <= layout.max_row_tile
    assert padded % tile == 0
    assert rows <= padded < rows + tile
    smallest = max(1, min(rows, (layout.max_row_tile + 1) // 2))
    candidates = range(smallest, layout.max_row_tile + 1)
    assert tile in candidates
    least = min(-(-rows // size) * size for size in candidates)
    assert padded == least
    # Among equals the largest: each row more reuses the loaded weights once more.
    assert tile == max(size for size in candidates if -(-rows // size) * size == least)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (1, (1, 1)),
        (3, (3, 3)),
        (7, (7, 7)),
        (8, (8, 8)),
        (9, (5, 10)),
        (51, (4, 52)),
        (128, (8, 128)),
    ],
)
def test_row_tiles_of_the_vnni_layout(rows: int, expected: tuple[int, int]) -> None:
    assert KernelLayout("uint8", 16, 4, 8).row_tile(rows) == expected


@given(st.integers(1, 300), st.sampled_from([4, 64, 384, 1536, 4096, 20000]))
def test_a_block_of_rows_is_whole_tiles_and_never_shrinks(tiles: int, depth: int) -> None:
    layout = KernelLayout("int16", 2, 4, 2, row_step=2, rhs_dtype="int16")
    block = layout.row_block(2 * tiles, depth, 2)
    assert block % 2 == 0 and min(8, 2 * tiles) <= block <= 2 * tiles
    assert block <= 8 or block * depth * 2 <= 16 * 1024
    assert layout.row_block(2 * tiles + 2, depth, 2) >= block


@given(layouts, st.integers(1, 70), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_packing_is_a_permutation_and_zeros(
    layout: KernelLayout, columns: int, depth: int, seed: int
) -> None:
    weight = np.random.default_rng(seed).integers(-128, 128, (columns, depth)).astype("int8")
    packed = layout.pack(weight)
    assert packed.dtype == np.int8 and packed.flags.c_contiguous
    assert packed.shape == layout.packed_shape(columns, depth)
    n, k = np.indices(weight.shape)
    at = (n // layout.lanes, k // layout.depth, n % layout.lanes, k % layout.depth)
    np.testing.assert_array_equal(packed[at], weight)
    assert np.count_nonzero(packed) == np.count_nonzero(weight)
    assert packed.size == layout.padded_columns(columns) * layout.padded_depth(depth)


@given(layouts, st.integers(1, 500))
def test_padding_is_to_whole_blocks_and_no_more(layout: KernelLayout, extent: int) -> None:
    for padded, block in (
        (layout.padded_columns(extent), layout.lanes),
        (layout.padded_depth(extent), layout.depth),
    ):
        assert padded % block == 0
        assert extent <= padded < extent + block
