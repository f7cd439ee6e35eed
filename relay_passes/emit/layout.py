"""How matrix operands are laid out in memory for the target's dot-product instruction.

Emission does not know targets; it gets this description of what the instruction eats. The layout
never changes a value, only where it lies and which constant offset is folded away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from ..spec.arithmetic import VECTORS, Arithmetic
from ..spec.halves import Halves
from ..spec.scalar import Scalar
from ..spec.scalar_minimum import ScalarWithMinimum
from ..spec.uniform_shifts import UniformShifts

_OF_VECTORS: tuple[tuple[str, type[Arithmetic]], ...] = (
    ("high_product", Halves),
    ("uniform_shift", UniformShifts),
)


class DotOperands(Protocol):
    """What emission asks of a target's dot-product instruction (``targets.DotInstruction``)."""

    @property
    def lhs_dtype(self) -> str:
        """Type of activations."""

    @property
    def rhs_dtype(self) -> str:
        """Type of weights."""

    @property
    def lanes(self) -> int:
        """Columns that one instruction updates."""

    @property
    def depth(self) -> int:
        """Products per column."""

    @property
    def tile_rows(self) -> int:
        """Most rows of a register tile."""

    @property
    def rows(self) -> int:
        """Rows that one instruction multiplies."""

    @property
    def either_sign(self) -> bool:
        """Whether activations may be bytes of either signedness."""

    @property
    def short(self) -> str:
        """Its form on two operands of 16 bits; empty where there is none."""


# Rows over which widened weights are reused: as many as take this memory once they are widened
# themselves, and at least so many, since fewer would widen weights for too few products.
ROW_BLOCK_BYTES = 16 * 1024
SMALLEST_ROW_BLOCK = 8


@dataclass(frozen=True)
class KernelLayout:
    """Operand layout of 8-bit matrix products.

    Attributes
    ----------
    lhs_dtype
        Type of the activation operand: int8, uint8 (activations stored with an offset of 128,
        compensated exactly in the bias), int16 or int32 (activations widened).
    lanes
        Columns per weight block.
    depth
        Consecutive reduction entries per weight block.
    max_row_tile
        Most rows that one register tile may have.
    row_step
        Rows that one instruction multiplies; tiles are whole numbers of these.
    scalar
        Whether the target computes one number at a time, in 32 bits.
    rhs_dtype
        Type of the weight operand: int8, as weights are stored, or int16 (widened in the kernel).
    row_lanes
        Columns that reductions over a row take at once; `lanes` where it is 0.
    functions
        Functions that a target has itself. Of single numbers, where it is scalar:
        ``"square_root"``, ``"floor_log2"``, ``"normalised_reciprocal"``, ``"minimum"``,
        ``"positive"``; of vectors: ``"high_product"``, and ``"uniform_shift"`` where no other shift
        of vectors is one. Others become expressions.
    either_sign
        Whether the instruction takes bytes of either signedness as activations, whatever
        `lhs_dtype` says: weights of a softmax, which are not negative, need no offset.
    multiplies_short
        Whether there is an instruction that multiplies numbers of 16 bits as they are.
    """

    lhs_dtype: str
    lanes: int
    depth: int
    max_row_tile: int
    row_step: int = 1
    scalar: bool = False
    rhs_dtype: str = "int8"
    row_lanes: int = 0
    functions: tuple[str, ...] = ()
    either_sign: bool = False
    multiplies_short: bool = False

    @cached_property
    def arithmetic(self) -> Arithmetic:
        """How the specification's operations are written, which every operand carries."""
        if not self.scalar:
            return next((kind() for name, kind in _OF_VECTORS if name in self.functions), VECTORS)
        kind = ScalarWithMinimum if "minimum" in self.functions else Scalar
        return kind(frozenset(self.functions))

    @property
    def reduced_lanes(self) -> int:
        """Columns that reductions over a row take at once."""
        return self.row_lanes or self.lanes

    @property
    def run_columns(self) -> int:
        """What runs of a product's columns must be multiples of for one epilogue to read several.

        0 where none can: a microkernel's tile is as narrow as its registers are few.
        """
        return 0 if self.scalar else self.lanes

    @property
    def widens_lhs(self) -> bool:
        """Whether kernels widen activations, whatever their signedness."""
        return self.lhs_dtype in ("int16", "int32")

    @property
    def widens_weights(self) -> bool:
        """Whether kernels widen weights of 8 bits, once for a block of rows."""
        return self.rhs_dtype != "int8"

    @property
    def has_microkernel(self) -> bool:
        """Whether a microkernel reads activations from a copy in the order of its own."""
        return self.scalar and self.widens_lhs

    @staticmethod
    def of(
        dot: DotOperands, vector_lanes: int = 4, functions: tuple[str, ...] = ()
    ) -> KernelLayout:
        """Layout for an instruction, on a target with so many lanes of 32 bits and `functions`."""
        # Interleaved rows (`row_step`) lie in runs of `depth`.
        run = min(vector_lanes, dot.depth) if dot.rows > 1 else vector_lanes
        return KernelLayout(
            dot.lhs_dtype,
            dot.lanes,
            dot.depth,
            dot.tile_rows,
            dot.rows,
            scalar=vector_lanes == 1,
            rhs_dtype=dot.rhs_dtype,
            row_lanes=max(dot.lanes, run),
            functions=functions,
            either_sign=dot.either_sign,
            multiplies_short=dot.rhs_dtype == "int16" or bool(dot.short),
        )

    def padded_columns(self, columns: int) -> int:
        """`columns` rounded up to whole blocks."""
        return -(-columns // self.lanes) * self.lanes

    def padded_depth(self, depth: int) -> int:
        """`depth` rounded up to whole blocks."""
        return -(-depth // self.depth) * self.depth

    def padded_keys(self, keys: int) -> int:
        """`keys` rounded up to whole blocks.

        They are columns of Q K^T, a row of the softmax and the depth of P V.
        """
        block = math.lcm(self.lanes, self.depth, 1 if self.scalar else self.reduced_lanes)
        return -(-keys // block) * block

    def row_tile(self, rows: int) -> tuple[int, int]:
        """Rows of the register tile, and the number of rows after padding to whole tiles.

        Of the tiles that pad least, the largest: every row of a tile reuses the loaded weights.
        """
        step = self.row_step
        most = self.max_row_tile // step
        smallest = max(1, min(-(-rows // step), (most + 1) // 2))
        candidates = range(smallest * step, most * step + 1, step)
        tile = min(candidates, key=lambda size: (-(-rows // size) * size, -size))
        return tile, -(-rows // tile) * tile

    def row_block(self, rows: int, depth: int, tile: int) -> int:
        """Rows of a product for which its widened weights are used again: whole tiles, or all.

        The number of blocks does not change it, so that the memory of a kernel never shrinks as
        its rows grow.

        Parameters
        ----------
        rows, depth
            Padded to whole tiles and blocks.
        tile
            Rows of a tile.
        """
        widened = np.dtype(self.lhs_dtype).itemsize
        fitting = max(SMALLEST_ROW_BLOCK, ROW_BLOCK_BYTES // (widened * depth))
        return min(rows, (1 << fitting.bit_length() - 1) // tile * tile)

    def packed_shape(
        self, columns: int, depth: int, *, packed: str = "entries"
    ) -> tuple[int, int, int, int]:
        """Shape of a packed operand: [column blocks, depth blocks, lanes, depth].

        Parameters
        ----------
        columns, depth
            Its shape [N, K] in the program.
        packed
            As its record has it: "entries", or "columns", whose depth blocks have one entry.
        """
        step = self.depth if packed == "entries" else 1
        return self.padded_columns(columns) // self.lanes, -(-depth // step), self.lanes, step

    def pack(self, weight: np.ndarray, packed: str = "entries") -> np.ndarray:
        """Pack an [N, K] operand, padding with zeros, so that a kernel reads it sequentially."""
        columns, depth = weight.shape
        blocks, chunks, lanes, step = self.packed_shape(columns, depth, packed=packed)
        padded = np.zeros((blocks * lanes, chunks * step), weight.dtype)
        padded[:columns, :depth] = weight
        return np.ascontiguousarray(
            padded.reshape(blocks, lanes, chunks, step).transpose(0, 2, 1, 3)
        )
