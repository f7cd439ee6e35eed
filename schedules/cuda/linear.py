"""Linear layers on tensor cores: a tile of results per block, the epilogue on runs of columns.

Strategy
--------
1. One block of threads per tile of results. ``ibert::Gemm`` (targets/cuda/device/gemm.cuh) leaves
   its sums in registers; how it is cut is a `GemmTile`, chosen by the product's sizes and the
   device, or given with `ibert_tvm.schedules.tiles.with_tile`. Weights in half bytes are widened
   there, as their stage says, which is compared with the description that intrinsics have.
2. Sixteen rows of every warp's tile at a time go through shared memory, so that a thread has runs
   of neighbouring columns of one row.
3. On a run, the thread loads whatever the epilogue reads at the same row and columns (residuals)
   or columns (biases, multipliers) by vectors, computes the traced stages entry by entry, and
   stores each result by vectors. No result of a stage before the last lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass

import tvm_ffi
from tvm import ir, tirx

from ibert_tvm.targets import Gpu

from ..intrinsics.widening import GROUP, described
from ..nodes import substituted
from ..products import matrix_products
from ..row_guard import rows_in_use, with_blocks
from ..rule import GpuRule
from ..stages import Leaf, NotElementwise, StageGraph, loads_of
from ..tiles import tile_of, without_tile
from .gemm_tile import PIECE_ROWS, GemmTile, choose_tile
from .runs import Loads, Results, RunOfChannels, itemsize
from .statements import address, call, guarded, launch, registers, sequence, thread, unrolled

_DEPTH = (
    16  # of weights in memory: the padding of `ibert_tvm.targets.cuda.descriptions.TENSOR_CORE`
)
_VECTOR_BYTES = 16
# Registers of sums, and of what is loaded once for all rows, that leave enough for an epilogue.
_MOST_HELD = 168
# An epilogue with more constants per column than this gets a tile with at most so many sums.
_MANY_CONSTANTS = 5
_FEWER_SUMS = 96


@dataclass(frozen=True)
class MatrixProduct:
    """The matrix product of a kernel.

    Attributes
    ----------
    lhs, rhs
        Parameters: [rows, depth] int8, and [columns, padded depth / 16, 1, 16] int8, or of half
        bytes [columns, padded depth / 32, 1, 16] uint8.
    sums
        Buffer of the accumulators.
    rows, columns, depth, padded_depth
        Sizes.
    scales
        Those of half bytes, [columns, pairs of groups, 1, 1] uint8; None of whole bytes.
    """

    lhs: tirx.Buffer
    rhs: tirx.Buffer
    sums: tirx.Buffer
    rows: int
    columns: int
    depth: int
    padded_depth: int
    scales: tirx.Buffer | None = None


class TensorCoreLinearRule(GpuRule):
    """Write kernels with one matrix product round ``ibert::Gemm``."""

    name = "tensor core linear"

    def write(self, func: tirx.PrimFunc, gpu: Gpu) -> tirx.PrimFunc:
        """See the module's strategy."""
        graph = StageGraph(func)
        product = matrix_product(graph)
        tile = _tile(func, graph, product, gpu)
        body = _Kernel(graph, product, tile).body(rows_in_use(func))
        # Blocks of s_tir are gone: what remains is plain loops.
        column_blocks = -(-product.columns // tile.block_columns)
        return without_tile(with_blocks(func, body, 1, tile.block_rows, column_blocks))


def _tile(func: tirx.PrimFunc, graph: StageGraph, product: MatrixProduct, gpu: Gpu) -> GemmTile:
    """Decisions that the kernel was given, if the device can follow them, or the default."""
    given = tile_of(func, GemmTile, lambda tile: tile.problem(gpu))
    if given is not None:
        return given
    sizes = (product.rows, product.columns, product.padded_depth)
    of_columns = [p for p in graph.parameters if _shape(p) == (product.columns,)]
    # Constants of columns are registers of the epilogue, next to the sums.
    if len(of_columns) > _MANY_CONSTANTS:
        return choose_tile(*sizes, gpu, _FEWER_SUMS)
    return choose_tile(*sizes, gpu)


def matrix_product(graph: StageGraph) -> MatrixProduct:
    """Operands and sizes of the product of a kernel.

    Raises
    ------
    NotElementwise
        If the kernel is no product of activations and packed weights in memory.
    """
    products = matrix_products(graph)
    if len(products) != 1 or len(products[0].stage.axes) != 2:
        raise NotElementwise("the kernel is no matrix product of rows and columns")
    stage = products[0].stage
    loads = loads_of(stage.value)
    weights = [load for load in loads if len(load.source.ty.shape) == 4]
    others = [load for load in loads if len(load.source.ty.shape) == 2]
    if len(loads) != 2 or len(weights) != 1 or len(others) != 1:
        raise NotElementwise("the product is not one of activations [M, K] and packed weights")
    rhs, lhs = weights[0].source, others[0].source
    copied = graph.producer(lhs)
    if copied is not None:
        # A depth that is no multiple of 16 makes emission copy the operand; the device code reads
        # the operand itself, and adds the zeros.
        sources = loads_of(copied.value)
        if len(sources) != 1 or graph.producer(sources[0].source) is not None:
            raise NotElementwise("the activations of the product are computed in its kernel")
        lhs = sources[0].source
    columns, chunks, lanes, chunk = _shape(rhs)
    stored = _half_bytes(graph, rhs)
    for operand in (lhs, rhs):
        if str(operand.ty.dtype) != "int8":
            raise NotElementwise(f"an operand of the product is {operand.ty.dtype}, not int8")
    rows, depth = _shape(lhs)
    padding = _DEPTH if stored is None else GROUP
    if (lanes, chunk) != (1, _DEPTH) or not 0 <= chunks * _DEPTH - depth < padding:
        raise NotElementwise(f"weights are packed as {_shape(rhs)} for a depth of {depth}")
    if stage.extents[1] != columns or stage.extents[0] < rows:
        raise NotElementwise(f"sums are {stage.extents}, operands {rows} x {columns}")
    rhs, scales = (rhs, None) if stored is None else stored
    return MatrixProduct(lhs, rhs, stage.buffer, rows, columns, depth, chunks * _DEPTH, scales)


def _half_bytes(graph: StageGraph, rhs: tirx.Buffer) -> tuple[tirx.Buffer, tirx.Buffer] | None:
    """Half bytes that weights are widened from, and their scales; None of whole bytes."""
    widened = graph.producer(rhs)
    if widened is None:
        return None
    columns, chunks, lanes, chunk = _shape(rhs)
    loads = loads_of(widened.value)
    if (lanes, chunk) == (1, _DEPTH) and chunks % 2 == 0 and len(loads) == 2:
        (meant,) = StageGraph(described(lanes, chunk, chunks, "int8")).stages.values()
        operands = [load.source for load in loads_of(meant.value)]
        shapes = [(columns, *_shape(operand)) for operand in operands]
        block, *axes = widened.axes
        own = dict(zip(axes, (meant.axes[0], _const(0), meant.axes[1]), strict=True))

        def in_block(load: ir.TensorLoad) -> tirx.Expr:
            place = [part.source.same_as(load.source) for part in loads].index(True)
            own_block = load.indices[0].same_as(block)
            return tirx.BufferLoad(operands[place], load.indices[1:]) if own_block else load

        value = tvm_ffi.structural_map(widened.value, [(ir.TensorLoad, in_block)])
        halves, scales = (load.source for load in loads)
        if (
            tvm_ffi.structural_equal(substituted(value, own), meant.value)
            and [_shape(halves), _shape(scales)] == shapes
            and list(widened.indices) == list(widened.axes)
            and graph.producer(halves) is graph.producer(scales) is None
        ):
            return halves, scales
    raise NotElementwise("the weights of the product are computed in its kernel")


class _Kernel:
    """Writes one kernel."""

    def __init__(self, graph: StageGraph, product: MatrixProduct, tile: GemmTile) -> None:
        self.graph, self.product, self.tile = graph, product, tile
        for output in graph.outputs:
            if _shape(output) != (product.rows, product.columns):
                raise NotElementwise(
                    f"a result is {_shape(output)}, the product {product.rows} x {product.columns}"
                )
        self.run = self._run_length()
        halves = product.scales is not None
        size = tile.shared_bytes_of_halves if halves else tile.shared_bytes
        self.shared = tirx.decl_buffer((size,), "uint8", "stages", scope="shared.dyn")
        self.sums = registers("sums", tile.accumulators, "int32")
        # Pointers to the whole of both: TVM would shrink a buffer to the entries that it sees used.
        self.shared_data = tirx.buffer_data(self.shared)
        self.sums_data = tirx.buffer_data(self.sums)
        sizes = (product.rows, product.columns, product.padded_depth, product.depth)
        further = ("true",) if halves else ()
        self.gemm = f"ibert::Gemm<{', '.join(map(str, (*sizes, *astuple(tile), *further)))}>"

    def _run_length(self) -> int:
        """Neighbouring columns that a thread has: 16 bytes of the widest tensor of two axes.

        More would leave gaps between the bytes that neighbouring threads load at a time; and more
        than eight take too many registers. Runs never cross the last column.
        """
        tensors = [*self.graph.outputs, *self._residuals()]
        widest = max(itemsize(str(tensor.ty.dtype)) for tensor in tensors)
        run = min(max(_VECTOR_BYTES // widest, 4), self.tile.longest_run())
        while self.product.columns % run:
            run //= 2
        return run

    def _residuals(self) -> list[tirx.Buffer]:
        shape = (self.product.rows, self.product.columns)
        taken = (self.product.lhs, self.product.rhs)
        return [
            parameter
            for parameter in self.graph.parameters
            if parameter not in taken and _shape(parameter) == shape
        ]

    def body(self, used: tirx.Expr | None) -> tirx.Stmt:
        """Statements of the kernel, whose blocks without a row in use return at once."""
        tile, product = self.tile, self.product
        row_blocks = -(-product.rows // tile.block_rows)
        column_blocks = -(-product.columns // tile.block_columns)
        block, thread_index = thread("blockIdx.x"), thread("threadIdx.x")
        first_row = block // column_blocks * tile.block_rows
        first_column = block % column_blocks * tile.block_columns
        multiplied = call(
            f"{self.gemm}::multiply",
            self.sums_data,
            self.shared_data,
            address(product.lhs, 0, 0),
            address(product.rhs, 0, 0, 0, 0),
            first_row,
            first_column,
            *([] if product.scales is None else [address(product.scales, 0, 0, 0, 0)]),
        )
        epilogue = self._direct if tile.warp_depths == 1 else self._staged
        work = sequence([tirx.Evaluate(multiplied), epilogue(first_row, first_column)])
        inside = [
            tirx.AllocBuffer(self.shared),
            tirx.AllocBuffer(self.sums),
            guarded(None if used is None else first_row < used, work),
        ]
        # The CUDA compiler unrolls what must be unrolled, so that the source stays short.
        body = tirx.AttrStmt(_const(0), "pragma_unroll_explicit", _const(0), sequence(inside))
        return launch(body, {block: row_blocks * column_blocks, thread_index: tile.threads})

    def _direct(self, first_row: tirx.Expr, first_column: tirx.Expr) -> tirx.Stmt:
        """The epilogue of sums that every thread has: part by part of its columns, row by row."""
        tile, runs = self.tile, f"{self.gemm}::Direct<{self.run}>"
        part, line = tirx.Var("part", "int32"), tirx.Var("line", "int32")
        row, number = tirx.Var("row", "int32"), tirx.Var("run", "int32")
        placed, exists = self._columns(number, first_column, _call_int(f"{runs}::number", part))

        def entry(lane: tirx.Expr) -> tirx.Expr:
            # ibert::Gemm::Direct says where they are.
            column = part * self.run + lane
            tiles = line // 2 * (tile.warp_columns // 8) + column // 2
            return tirx.BufferLoad(self.sums, [tiles * 4 + line % 2 * 2 + column % 2])

        early, epilogue = self._epilogue(row, number, entry, True)
        each = [
            tirx.Bind(row, first_row + _call_int(f"{runs}::row", line)),
            self._guarded(row, exists, epilogue),
        ]
        lines = unrolled(line, tile.warp_rows // 8, sequence(each))
        parts = tile.warp_columns // 4 // self.run
        return unrolled(part, parts, sequence([*placed, *early, lines]))

    def _staged(self, first_row: tirx.Expr, first_column: tirx.Expr) -> tirx.Stmt:
        """The epilogue of sums of several warps, sixteen rows of a warp's tile at a time."""
        tile, runs = self.tile, f"{self.gemm}::Runs<{self.run}>"
        piece, part = tirx.Var("piece", "int32"), tirx.Var("part", "int32")
        row, number = tirx.Var("row", "int32"), tirx.Var("run", "int32")
        # Threads may divide such that the runs of each have the same columns.
        steady = 32 * tile.warp_depths % (tile.warp_columns // self.run) == 0
        in_tile = _call_int(f"{runs}::number", _const(0) if steady else part)
        placed, exists = self._columns(number, first_column, in_tile)
        read = registers("sums_run", self.run, "int32")
        early, epilogue = self._epilogue(
            row, number, lambda lane: tirx.BufferLoad(read, [lane]), steady
        )
        loaded = [
            tirx.AllocBuffer(read),
            tirx.Evaluate(call(f"{runs}::read", address(read, 0), self.shared_data, part)),
            epilogue,
        ]
        one_part = [
            *([] if steady else placed),
            tirx.Bind(row, first_row + _call_int(f"{runs}::row", piece, part)),
            self._guarded(row, exists, sequence(loaded)),
        ]
        staged = call(f"{self.gemm}::stage", self.sums_data, self.shared_data, piece)
        parts = unrolled(part, tile.staged_runs // self.run, sequence(one_part))
        pieces = unrolled(
            piece, tile.warp_rows // PIECE_ROWS, sequence([tirx.Evaluate(staged), parts])
        )
        return sequence([*(placed if steady else []), *early, pieces])

    def _guarded(self, row: tirx.Var, exists: list[tirx.Expr], body: tirx.Stmt) -> tirx.Stmt:
        """What a thread does in a row, if row and columns exist."""
        if self.product.rows % self.tile.block_rows:
            exists = [*exists, row < _const(self.product.rows)]
        return guarded(tirx.all(*exists) if exists else None, body)

    def _columns(
        self, number: tirx.Var, first_column: tirx.Expr, in_tile: tirx.Expr
    ) -> tuple[list[tirx.Stmt], list[tirx.Expr]]:
        """Which run of columns a thread has, as a variable, and conditions for it to exist.

        The variable is that of a run that exists, so that a thread that stores nothing can load.
        """
        wanted = tirx.floordiv(first_column, _const(self.run)) + in_tile
        count = self.product.columns // self.run
        if self.product.columns % self.tile.block_columns == 0:
            return [tirx.Bind(number, wanted)], []
        any_run = tirx.Var("any_run", "int32")
        last = tirx.min(any_run, _const(count - 1))
        return [tirx.Bind(any_run, wanted), tirx.Bind(number, last)], [any_run < _const(count)]

    def _epilogue(
        self, row: tirx.Var, number: tirx.Var, entry: Callable[[tirx.Expr], tirx.Expr], steady: bool
    ) -> tuple[list[tirx.Stmt], tirx.Stmt]:
        """Everything behind the sums of one run, and what can be loaded before all rows.

        Parameters
        ----------
        row, number
            Row, and run of columns.
        entry
            Sum of a column of the run.
        steady
            Whether a thread's columns are the same in all rows.
        """
        early, epilogue = self._loaded(row, number, entry, steady)
        if steady and self.tile.accumulators + self.run * len(early) // 2 > _MOST_HELD:
            return self._loaded(row, number, entry, False)
        return early, epilogue

    def _loaded(
        self, row: tirx.Var, number: tirx.Var, entry: Callable[[tirx.Expr], tirx.Expr], steady: bool
    ) -> tuple[list[tirx.Stmt], tirx.Stmt]:
        product, graph = self.product, self.graph
        run = RunOfChannels(
            self.run,
            lambda _step: number * self.run,
            1,
            {row: product.rows, number: product.columns // self.run},
        )
        loads = Loads(run, kept=False)
        # What depends on no row.
        of_columns = Loads(run.without(row), kept=False)
        leaves: dict[tirx.Var, Leaf] = {
            parameter: (of_columns if steady and len(_shape(parameter)) == 1 else loads).leaf(
                parameter
            )
            for parameter in graph.parameters
        }
        leaves[product.sums] = lambda _indices: entry(run.lane)
        results = [stage for stage in graph.stages.values() if stage.buffer in graph.outputs]
        outputs = Results(graph.evaluate(leaves), run, [row], results)
        statements = [*loads.declarations, *loads.copies, *outputs.declarations, *outputs.entries]
        return [*of_columns.declarations, *of_columns.copies], sequence(statements)


def _call_int(name: str, *arguments: tirx.Expr) -> tirx.Expr:
    """Call of a device function that returns an int."""
    return call(name, *arguments, dtype="int32")


def _const(value: int) -> tirx.Expr:
    return tirx.const(value, "int32")


def _shape(buffer: tirx.Buffer) -> tuple[int, ...]:
    return tuple(int(size) for size in buffer.ty.shape)
