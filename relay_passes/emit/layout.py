"""How matrix operands are laid out in memory for the target's dot-product instruction.

Emission does not know targets; it gets this description of what the instruction eats. The layout
never changes a value, only where it lies and which constant offset is folded away.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class KernelLayout:
    """Operand layout of 8-bit matrix products.

    Attributes
    ----------
    lhs_dtype
        Type of the activation operand: int8, uint8 (activations stored with an offset of 128,
        compensated exactly in the bias) or int16 (activations widened).
    lanes
        Columns per weight block.
    depth
        Consecutive reduction entries per weight block.
    max_row_tile
        Most rows that one register tile may have.
    """

    lhs_dtype: str
    lanes: int
    depth: int
    max_row_tile: int

    def padded_columns(self, columns: int) -> int:
        """`columns` rounded up to whole blocks."""
        return -(-columns // self.lanes) * self.lanes

    def padded_depth(self, depth: int) -> int:
        """`depth` rounded up to whole blocks."""
        return -(-depth // self.depth) * self.depth

    def row_tile(self, rows: int) -> tuple[int, int]:
        """Rows of the register tile, and the number of rows after padding to whole tiles.

        Of the tiles that pad least, the largest: every row of a tile reuses the loaded weights.
        """
        smallest = max(1, min(rows, (self.max_row_tile + 1) // 2))
        candidates = range(smallest, self.max_row_tile + 1)
        tile = min(candidates, key=lambda size: (-(-rows // size) * size, -size))
        return tile, -(-rows // tile) * tile

    def packed_shape(self, columns: int, depth: int) -> tuple[int, int, int, int]:
        """Shape of a packed weight: [column blocks, depth blocks, lanes, depth]."""
        return (
            self.padded_columns(columns) // self.lanes,
            self.padded_depth(depth) // self.depth,
            self.lanes,
            self.depth,
        )

    def pack(self, weight: np.ndarray) -> np.ndarray:
        """Pack an [N, K] weight, padding with zeros, so that a kernel reads it sequentially."""
        columns, depth = weight.shape
        padded = np.zeros((self.padded_columns(columns), self.padded_depth(depth)), weight.dtype)
        padded[:columns, :depth] = weight
        blocks = padded.reshape(-1, self.lanes, padded.shape[1] // self.depth, self.depth)
        return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3))
