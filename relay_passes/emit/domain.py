"""The domain of kernels: the bodies of operators, traced to tensor expressions of TIR.

See `ibert_tvm.relay_passes.integer.domain`. Each stage is a block of the kernel, in the width that
its interval allows; what it computes comes from the specification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from tvm import te, tirx

from ..errors import LoweringError
from ..integer.domain import Entry, EntryAt, Shape, Windowed
from ..integer.intervals import accumulator_bounds, check_sum, sum_bounds
from ..spec import nibbles, short_layer_norm
from ..spec.arithmetic import VECTORS
from ..spec.values import INT32, Condition, Ranged, Value, ranged
from .attention import KernelBlocks, KernelHeads
from .stage import Expr, Stage, expression

_GROUP = 8
WIDENED = "widened"
"""Name of the stage that widens half bytes."""


@dataclass(frozen=True)
class PackedWeight:
    """A weight, or scales of one, that kernels have in the order of the dot-product instruction.

    Attributes
    ----------
    array
        [N, K], as the program has it.
    tensor
        The packed form: a placeholder, or of half bytes what the kernel widens them to.
    first
        Row of the packed form that row 0 of the array is; a whole number of the layout's lanes.
    """

    array: np.ndarray
    tensor: te.Tensor
    first: int = 0

    def run(self, first: int, rows: int) -> PackedWeight:
        """Some of the rows, in the same place."""
        return replace(self, array=self.array[first : first + rows], first=self.first + first)

    @property
    def is_widened(self) -> bool:
        """Whether the kernel widens half bytes to it."""
        return bool(self.tensor.op.input_tensors)


class KernelDomain(KernelBlocks):
    """The domain of one kernel under construction."""

    _activations: Stage | None = None

    # -- stages ---------------------------------------------------------------------------------

    def sum(self, name: str, shape: Shape, extent: int, entry: EntryAt, dtype: str = "") -> Stage:
        """Define a block that adds up."""

        def total(value: Ranged, k: tirx.IterVar) -> Expr:
            check_sum(name, value, extent, dtype or "int64")
            kind = dtype or Ranged(*sum_bounds(value, extent)).dtype
            return te.sum(expression(value, kind), axis=k)

        tensor, value = self._reduced(name, shape, extent, entry, total)
        return self.stage(tensor, *sum_bounds(value, extent))

    def max(self, name: str, shape: Shape, extent: int, entry: EntryAt, dtype: str = "") -> Stage:
        """Define a block that takes the largest."""

        def largest(value: Ranged, k: tirx.IterVar) -> Expr:
            return te.max(expression(value, dtype or value.dtype), axis=k)

        tensor, value = self._reduced(name, shape, extent, entry, largest)
        return self.stage(tensor, value.low, value.high)

    def _reduced(
        self,
        name: str,
        shape: Shape,
        extent: int,
        entry: EntryAt,
        reduce: Callable[[Ranged, tirx.IterVar], Expr],
    ) -> tuple[te.Tensor, Ranged]:
        """Tensor of a reduction, and what is known of an entry of it."""
        entries: list[Ranged] = []
        k = te.reduce_axis((0, extent), name="k")

        def compute(*index: Expr) -> Expr:
            entries.append(self.trace(entry, *index, k.var))
            return reduce(entries[0], k)

        return te.compute(tuple(shape), compute, name=name), entries[0]

    def square_sum(
        self, name: str, x: EntryAt, total: Stage | None, mean: Stage | None, shape: tuple[int, int]
    ) -> Stage:
        """Square deviations; without vectors, what saves an operation per entry."""
        rows, channels = shape

        def deviation(row: Expr, k: Expr) -> Value:
            return x(row, k) if mean is None else short_layer_norm.deviation(x(row, k), mean[row])

        if not self.layout.scalar:
            return self.sum(
                name, (rows,), channels, lambda row, k: short_layer_norm.square(deviation(row, k))
            )
        squares = self._grouped_squares(rows, channels, x)
        if mean is None or total is None:
            return squares
        return self.define(
            name,
            (rows,),
            lambda row: short_layer_norm.sum_about_mean(
                squares[row], total[row], mean[row], channels
            ),
            "int64",
        )

    def _grouped_squares(self, rows: int, channels: int, x: EntryAt) -> Stage:
        """Sum of squares, int64, of groups that fit 32 bits: one product and sum per entry."""
        largest = short_layer_norm.INPUT_LIMIT**2
        limit = min(_GROUP, INT32[1] // largest)
        group = next(size for size in range(limit, 0, -1) if channels % size == 0)
        j = te.reduce_axis((0, group), name="j")

        def squared(row: Expr, part: Expr) -> Expr:
            channel = part * group + j.var
            return expression(self.trace(lambda: short_layer_norm.square(x(row, channel))), "int32")

        groups = te.compute(
            (rows, channels // group),
            lambda row, part: te.sum(squared(row, part), axis=j),
            name="square_groups",
        )
        g = te.reduce_axis((0, channels // group), name="g")
        total = te.compute(
            (rows,), lambda row: te.sum(groups(row, g).astype("int64"), axis=g), name="squares"
        )
        return self.stage(total, 0, largest * channels)

    # -- matrix products ------------------------------------------------------------------------

    def linear(self, x: Stage, weight: Stage | PackedWeight, bias: Stage) -> Stage:
        """Define the product with a packed weight, and the addition of the bias."""
        assert isinstance(weight, PackedWeight)
        layout = self.layout
        rows, columns = x.shape[0], weight.array.shape[0]
        name = f"accumulator_{weight.first}" if weight.first else "accumulator"
        # Of several runs of a weight, all multiply the same.
        lhs = self._activations = self._activations or self._lhs(x, weight)
        self.note_operands(name, lhs.low, int(weight.array.min(initial=0)))
        padded_rows, padded_depth = lhs.shape
        packed = self._widened(weight)
        lanes, step = layout.lanes, layout.depth
        first = weight.first // lanes
        k = te.reduce_axis((0, padded_depth), name="k")
        products = te.compute(
            (padded_rows, layout.padded_columns(columns)),
            lambda m, n: te.sum(
                lhs.tensor[m, k].astype("int32")
                * packed[n // lanes + first, k // step, n % lanes, k % step].astype("int32"),
                axis=k,
            ),
            name=name,
        )
        # Of partial sums too: an interval of x without 0 is widened to it.
        low, high = accumulator_bounds(weight.array, min(x.low, 0), max(x.high, 0))
        accumulator = self.stage(products, int(low.min(initial=0)), int(high.max(initial=0)))
        return self.define("biased", (rows, columns), lambda m, n: accumulator[m, n] + bias[n])

    def widened(
        self, weight: Stage | PackedWeight, scales: Stage | PackedWeight, channels: int
    ) -> PackedWeight:
        """Define the packed weight that packed half bytes stand for, in the instruction's type.

        A column's block of the depth has lower halves in one half of each group, upper ones in the
        other, so that a vector of bytes gives two of weights.
        """
        assert isinstance(weight, PackedWeight) and isinstance(scales, PackedWeight)
        array = nibbles.unpack(weight.array, scales.array, channels)
        # As the intrinsics have it, whatever else the target's arithmetic writes in its own way.
        halves, of_groups = (Stage(one.tensor, 0, 255, VECTORS) for one in (weight, scales))
        blocks, chunks, lanes, step = halves.shape
        half = nibbles.HALF // step

        def entry(block: Expr, chunk: Expr, lane: Expr, inner: Expr) -> Expr:
            group, within = chunk // (2 * half), chunk % (2 * half)
            # Not traced with bindings, which no tensor intrinsic matches: nothing is used twice.
            value = nibbles.entry_of(
                halves[block, group * half + within % half, lane, inner],
                halves.value(0, 1, (within // half).astype("int32")),
                of_groups[block, group // 2, lane, 0],
                halves.value(0, 1, (group % 2).astype("int32")),
            )
            return expression(value, self.layout.rhs_dtype)

        name = f"{WIDENED}_{weight.first}" if weight.first else WIDENED
        tensor = te.compute((blocks, 2 * chunks, lanes, step), entry, name=name)
        return PackedWeight(array, tensor, weight.first)

    def _lhs(self, x: Stage, weight: PackedWeight) -> Stage:
        """Bring activations to what the instruction wants, by a copy only where needed.

        Parameters
        ----------
        x
            [M, K] int8 or uint8.
        weight
            What it is multiplied with.

        Returns
        -------
        Stage
            [padded M, padded K] of the layout's ``lhs_dtype``.
        """
        layout = self.layout
        rows, depth = x.shape
        tile, padded_rows = layout.row_tile(rows)
        self.attributes["ibert.row_tile"] = tile
        padded_depth = int(weight.tensor.shape[1]) * layout.depth
        whole = (rows, depth) == (padded_rows, padded_depth)
        if layout.widens_weights or (weight.is_widened and layout.has_microkernel):
            block = layout.row_block(padded_rows, padded_depth, tile)
            self.attributes["ibert.row_block"] = block
            padded_rows = -(-padded_rows // block) * block
        if x.dtype != layout.lhs_dtype and not layout.widens_lhs:
            raise LoweringError(
                what=f"a matrix operand is {x.dtype}, the instruction takes {layout.lhs_dtype}",
                where=self.layer,
                why="the pass offset_activations did not run before emission",
                todo="use ibert_tvm.relay_passes.passes.pipeline, which orders the passes",
            )
        # An instruction that takes several rows at once, and a microkernel, read them from a copy
        # that interleaves them.
        interleaves = layout.row_step > 1 or layout.has_microkernel
        if x.dtype == layout.lhs_dtype and whole and not interleaves:
            return x
        self.attributes["ibert.lhs_copied"] = True

        def copy(row: tirx.Var, column: tirx.Var) -> Expr:
            value = x.tensor[tirx.min(row, rows - 1), tirx.min(column, depth - 1)]
            value = value.astype(layout.lhs_dtype)
            if whole:
                row = row if rows == padded_rows else tirx.min(row, rows - 1)
                return x.tensor[row, column].astype(layout.lhs_dtype)
            inside = tirx.all(row < rows, column < depth)
            return tirx.if_then_else(inside, value, tirx.const(0, layout.lhs_dtype))

        copied = te.compute((padded_rows, padded_depth), copy, name="lhs")
        return self.stage(copied, min(x.low, 0), max(x.high, 0))

    def _widened(self, weight: PackedWeight) -> te.Tensor:
        """Packed weight in the type that the instruction takes, by a copy only where needed."""
        packed, dtype = weight.tensor, self.layout.rhs_dtype
        if str(packed.dtype) == dtype:
            return packed
        return te.compute(packed.shape, lambda *index: packed(*index).astype(dtype), name="rhs")

    def distance_products(self, x: Stage, table: Stage, heads: int) -> Stage:
        """Add up along the channels of a head, for each head of a token and other token."""
        rows, channels = x.shape
        length, width = rows // self.batch, channels // heads
        here = table.shape[1] // 2
        k = te.reduce_axis((0, width), name="k")

        def compute(batch: Expr, token: Expr, head: Expr, other: Expr) -> Expr:
            channel = head * width + k.var
            value = x.tensor(batch * length + token, channel).astype("int32")
            vector = table.tensor(channel, other - token + here).astype("int32")
            return te.sum(value * vector, axis=k)

        product = Ranged(x.low, x.high) * Ranged(table.low, table.high)
        check_sum("products", product, width, "int32")
        tensor = te.compute((self.batch, length, heads, length), compute, name="products")
        return self.stage(tensor, *sum_bounds(product, width))

    def heads(self, attention: Windowed, operands: Mapping[str, Stage]) -> KernelHeads:
        """Lay the operands of attention out for the instruction."""
        return KernelHeads(self, attention, operands)

    # -- places ---------------------------------------------------------------------------------

    def lookup(self, value: Entry, rows: int, source: Stage) -> Expr:
        """Clamp: callers check what they pass, and nothing may be read outside of a table."""
        index = ranged(value).expr.astype("int32")
        return tirx.max(tirx.min(index, tirx.const(rows - 1, "int32")), tirx.const(0, "int32"))

    def index(self, value: Entry) -> Expr:
        """Expression of the value."""
        return ranged(value).expr

    def number(self, index: Expr, low: int, high: int) -> Ranged:
        """Index as a value of 32 bits."""
        return self.value(low, high, index.astype("int32"))

    def tokens(self, length: int) -> int:
        """Return the number, of kernels for one length."""
        return length

    def condition(self, comparison: Expr) -> Condition:
        """Condition of the expression."""
        return Condition(comparison, self.arithmetic)

    def choose(self, comparison: Expr, yes: Value, no: Value) -> Ranged:
        """Read one of two, and only that."""
        a, b = ranged(yes), ranged(no)
        low, high = min(a.low, b.low), max(a.high, b.high)
        dtype = Ranged(low, high).dtype
        chosen = tirx.if_then_else(comparison, expression(a, dtype), expression(b, dtype))
        return self.value(low, high, chosen)

    def at_most(self, index: Expr, bound: int) -> Expr:
        """``min(index, bound)``."""
        return tirx.min(index, bound)

    def at_least(self, index: Expr, bound: int) -> Expr:
        """``max(index, bound)``."""
        return tirx.max(index, bound)

    def row_of_token(self, x: Stage, slots: Stage | None, batch: Expr, token: Expr) -> Expr:
        """See the protocol."""
        if slots is None:
            return batch * (x.shape[0] // self.batch) + token
        return tirx.max(slots.tensor(batch, token), tirx.const(0, "int32"))

    def bounds(self, tensor: Stage) -> tuple[int, int]:
        """Interval of the entries."""
        return tensor.low, tensor.high
