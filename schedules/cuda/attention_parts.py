"""What an attention kernel on a GPU is put together from: threads, registers, loads, entries.

`ibert_tvm.schedules.cuda.attention` has the order in which it happens.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from ibert_tvm.targets import Gpu

from ..row_guard import Guards
from ..stages import Leaf, NotElementwise, StageDefinition, StageGraph
from ..tiles import tile_of
from .attention_operands import (
    Operand,
    SoftmaxStages,
    attention_operands,
    attention_sizes,
    reads,
    result_stage,
)
from .attention_tile import AttentionSizes, AttentionTile, candidate_tiles
from .statements import WARP, address, call, guarded, registers, sequence, thread, unrolled

CHUNK = 16
"""Bytes that one thread copies, and rows and columns of a fragment."""
FRAGMENT_KEYS, FRAGMENT = 16, 8
"""Keys of a fragment, and entries that a lane has of it: four keys of two rows."""


def _decisions(func: tirx.PrimFunc, sizes: AttentionSizes, gpu: Gpu) -> AttentionTile:
    """Decisions that the kernel was given, if a device can follow them, or the default."""
    given = tile_of(func, AttentionTile, lambda tile: tile.problem(sizes))
    if given is not None:
        return given
    ranked = candidate_tiles(sizes, gpu)
    if not ranked:
        raise NotElementwise(f"heads of {sizes.head_dim} channels do not fit shared memory")
    return ranked[0]


@dataclass(frozen=True)
class Score:
    """A score of a lane: of a step, one of the four keys that it has of a row of a fragment."""

    step: tirx.Expr | int
    fragment: tirx.Expr
    row: tirx.Expr
    key: tirx.Expr


class AttentionParts:
    """A kernel under construction.

    Parameters
    ----------
    func
        As emission wrote it.
    gpu
        What it runs on.
    """

    def __init__(self, func: tirx.PrimFunc, gpu: Gpu) -> None:
        self.graph = graph = StageGraph(func)
        self.sizes: AttentionSizes = attention_sizes(func, graph)
        self.queries, self.keys, self.values = attention_operands(graph, self.sizes)
        self.tile = _decisions(func, self.sizes, gpu)
        self.run_keys = self.sizes.run_keys(self.tile.rows)
        (self.output,) = graph.outputs
        self.result = result_stage(graph)
        self.stages = SoftmaxStages(graph)
        self.normalised, self.weights = self.stages.normalised, self.stages.weights
        if str(self.weights.buffer.ty.dtype) != "uint8":
            raise NotElementwise("the weights of attention are not stored as unsigned bytes")
        self.key_info = self.stages.key_info
        self.starts_from_keys = self._scores_are_sums()
        self.row_stages = self._stages_of_rows()
        self._name_threads()
        self._place_sequence(Guards(func))
        self._declare_registers()

    def _scores_are_sums(self) -> bool:
        """Whether a score is a product and what is known of its key, added."""
        value = self.stages.scored.value
        if self.key_info is None or not isinstance(value, tirx.Add):
            return False
        terms = (self.stages.scores.stage.buffer, self.key_info.buffer)
        read = [part.source for part in (value.a, value.b) if isinstance(part, ir.TensorLoad)]
        return len(read) == 2 and all(any(x.same_as(y) for y in read) for x in terms)

    def _stages_of_rows(self) -> list[StageDefinition]:
        """Stages that make something of a row's sum, in order."""
        buffers = [self.stages.row_sum.buffer]
        found = []
        for stage in self.graph.stages.values():
            if len(stage.extents) == 3 and any(reads(stage.value, buffer) for buffer in buffers):
                found.append(stage)
                buffers.append(stage.buffer)
        return found

    # -- names --------------------------------------------------------------------------------

    def _name_threads(self) -> None:
        tile, sizes = self.tile, self.sizes
        self.tile_index = thread("blockIdx.x")
        self.head, self.batch = thread("blockIdx.y"), thread("blockIdx.z")
        self.thread = thread("threadIdx.x")
        self.grid = {
            self.batch: sizes.batch,
            self.head: sizes.heads,
            self.tile_index: -(-sizes.seq_len // tile.rows),
            self.thread: tile.threads,
        }
        self.first_row = self.tile_index * tile.rows
        warp = self.thread // WARP
        self.row_group, self.key_group = warp % tile.row_groups, warp // tile.row_groups
        lane = self.thread % WARP
        self.lane_row, self.lane_column = lane // 4, lane % 4

    def _place_sequence(self, guards: Guards) -> None:
        """Say where the rows and the keys of the sequence lie.

        Key 0 is the first row of the sequence; or packed, so many rows before the end, if that is
        less, as emission has it: then the key of query 0 is number `self.lead_in`.
        """
        tile, sizes = self.tile, self.sizes
        self.packed = guards.starts is not None
        self.bound: list[tirx.Stmt] = []
        zero = tirx.const(0, "int32")
        self.start: tirx.Expr = self.batch * sizes.seq_len
        self.key_start, self.lead_in = self.start, zero
        self.length: tirx.Expr = tirx.const(sizes.seq_len, "int32")
        if self.packed:
            last = (sizes.batch - 1) * sizes.seq_len
            self.start = self._bind("start", guards.start(self.batch))
            self.length = self._bind("length", guards.start(self.batch + 1) - self.start)
            self.key_start = self._bind("key_start", tirx.min(self.start, last))
            self.lead_in = self._bind("lead_in", self.start - self.key_start)
        self.end_of_keys = self.lead_in + self.length
        self.valid_rows = tirx.min(self.length - self.first_row, tile.rows)
        if sizes.seq_len % tile.rows == 0 and not self.packed:
            self.valid_rows = tirx.const(tile.rows, "int32")
        self.first_seen = self.first_row + self.lead_in if self.packed else self.first_row
        self.base: tirx.Expr = zero
        if self.run_keys < sizes.keys:
            lead = tirx.max(self.first_seen - sizes.lead, 0)
            self.base = tirx.min(lead, sizes.keys - self.run_keys)

    def _bind(self, name: str, value: tirx.Expr) -> tirx.Var:
        """Name a number of the block, which is computed first."""
        variable = tirx.Var(name, "int32")
        self.bound.append(tirx.Bind(variable, value))
        return variable

    def _declare_registers(self) -> None:
        tile, sizes = self.tile, self.sizes
        self.columns = -(-(sizes.depth // CHUNK) // tile.key_groups)
        self.scores = registers("scores", tile.scores, "int32")
        self.row_max = registers("row_max", 2, "int32")
        self.row_sum = registers("row_sum", 2, "int32")
        held = FRAGMENT * self.columns * sizes.value_parts
        self.context = registers("context", held, "int32")
        self.four = registers("four", 4, "int32")
        self.row_values = {
            stage.name: registers(stage.name, 2, str(stage.buffer.ty.dtype))
            for stage in self.row_stages
        }
        self.own_values = {
            stage.name: registers(f"own_{stage.name}", 1, str(stage.buffer.ty.dtype))
            for stage in self.row_stages
        }

    def call(self, function: str, *arguments: tirx.Expr, dtype: str = "void") -> tirx.Expr:
        """Call of a step of the device code."""
        tile, sizes = self.tile, self.sizes
        stride = self.result_stride()
        unit = math.gcd(
            CHUNK,
            sizes.head_dim,
            *(x for o in (self.queries, self.keys, self.values) for x in (o.stride, o.offset)),
        )
        result_unit = math.gcd(CHUNK, sizes.head_dim * sizes.result_bytes, stride)
        parameters = (
            tile.row_groups,
            tile.key_groups,
            sizes.head_dim,
            tile.step_keys,
            unit,
            sizes.result_bytes,
            result_unit,
            str(tile.value_tile).lower(),
            self.values.low_bits,
        )
        listed = ", ".join(map(str, parameters))
        return call(f"ibert::Attention<{listed}>::{function}", *arguments, dtype=dtype)

    def run(self, function: str, *arguments: tirx.Expr) -> tirx.Stmt:
        """Call a step for what it does."""
        return tirx.Evaluate(self.call(function, *arguments))

    def result_stride(self) -> int:
        """Bytes from the results of one token to those of the next."""
        return self.sizes.heads * self.sizes.head_dim * self.sizes.result_bytes

    # -- loads --------------------------------------------------------------------------------

    def pointer(self, operand: Operand, token: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """First channel of the head in a query or key, and the bytes to the next one."""
        head = self.head if operand.sharing == 1 else self.head // operand.sharing
        channel = head * self.sizes.head_dim + operand.offset
        start = self.start if operand is self.queries else self.key_start
        return address(operand.buffer, start + token, channel), tirx.const(operand.stride, "int32")

    def load_queries(self) -> tirx.Stmt:
        """Bring the rows of the block to shared memory."""
        return self.run(
            "load_queries", *self.pointer(self.queries, self.first_row), self.valid_rows
        )

    def first_key(self, step: tirx.Expr | int) -> tirx.Expr:
        """First key of a step."""
        return self.base + step * self.tile.step_keys

    def where_seen(self, step: tirx.Expr | int, statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
        """Do something for a step if a query of the block sees one of its keys."""
        sizes, tile = self.sizes, self.tile
        seen = []
        if tile.steps > 1 and sizes.after < sizes.seq_len - 1:
            seen.append(self.first_key(step) < self.first_seen + (tile.rows + sizes.after))
        end = self.first_key(step) + tile.step_keys
        if tile.steps > 1 and sizes.before < sizes.seq_len - 1:
            seen.append(end > self.first_seen - sizes.before)
        if tile.steps > 1 and self.packed:
            seen += [self.first_key(step) < self.end_of_keys, end > self.lead_in]
        return guarded(tirx.all(*seen) if seen else None, sequence(statements))

    def load(self, what: str, step: tirx.Expr | int) -> tirx.Stmt:
        """Bring the ``"keys"`` or the ``"values"`` of a step to shared memory."""
        operand = self.keys if what == "keys" else self.values
        first = self.first_key(step)
        return self.run(f"load_{what}", *self.pointer(operand, first), self.end_of_keys - first)

    def load_both(self, step: int) -> tirx.Stmt:
        """Bring keys and values of a step to shared memory, as two groups of copies."""
        first = self.first_key(step)
        return self.run(
            "load_step",
            *self.pointer(self.keys, first),
            *self.pointer(self.values, first),
            self.end_of_keys - first,
        )

    def work(self, macs: int) -> int:
        """Multiplications that are left of those with all keys."""
        sizes, tile = self.sizes, self.tile
        if not sizes.windowed:
            return macs
        most = min(self.run_keys, sizes.seq_len)
        keys = [min(steps * tile.step_keys, most) for steps in tile.steps_seen(sizes)]
        rows = [min(tile.rows, sizes.seq_len - i * tile.rows) for i in range(len(keys))]
        return macs * sum(map(operator.mul, keys, rows)) // sizes.seq_len**2

    def meet(self) -> tirx.Stmt:
        """Wait for all threads of the block."""
        return self.run("meet")

    def set_keys(self, step: tirx.Expr | int) -> tirx.Stmt:
        """Compute once per block what is known of each key of a step."""
        if self.key_info is None:
            return tirx.Evaluate(tirx.const(0, "int32"))
        tile, stage = self.tile, self.key_info
        turn = tirx.Var("turn", "int32")
        place = turn * tile.threads + self.thread
        key = self.first_key(step) + place
        indices = [self.batch, key] if len(stage.extents) == 2 else [self.batch, self.head, key]
        evaluation = self.graph.evaluate()
        value = evaluation.entry(stage.buffer, indices)
        stored = sequence([*evaluation.bindings, self.run("set_key", place, value)])
        if tile.steps * tile.step_keys > self.run_keys:
            nothing = self.run("set_key", place, tirx.const(0, "int32"))  # nobody looks at it
            inside = step * tile.step_keys + place < self.run_keys
            stored = tirx.IfThenElse(inside, stored, nothing)
        condition = place < tile.step_keys if tile.step_keys % tile.threads else None
        return unrolled(turn, -(-tile.step_keys // tile.threads), guarded(condition, stored))

    # -- entries -------------------------------------------------------------------------------

    def place(self, step: tirx.Expr | int) -> tirx.Expr | int:
        """Where the scores of a step begin."""
        return step * (self.tile.warp_keys // 2) if self.tile.held else 0

    def each_entry(
        self,
        step: tirx.Expr | int,
        body: Callable[[Score], Sequence[tirx.Stmt]],
        after: Callable[[tirx.Expr, tirx.Expr], tirx.Stmt] | None = None,
        otherwise: Callable[[tirx.Expr, tirx.Expr], tirx.Stmt] | None = None,
    ) -> tirx.Stmt:
        """Do something for every score of a step.

        Parameters
        ----------
        step
            Of the keys.
        body
            For one score.
        after
            ``after(fragment, r)``, once `body` was done for four keys.
        otherwise
            Instead of both, where a fragment lies behind the last key.
        """
        m, r, u = (tirx.Var(name, "int32") for name in ("fragment", "r", "u"))
        inner = [unrolled(u, 4, sequence(list(body(Score(step, m, r, u)))))]
        if after is not None:
            inner.append(after(m, r))
        statement = sequence(inner)
        tile = self.tile
        if tile.steps * tile.step_keys > self.run_keys:
            first = step * tile.step_keys + self.key_group * tile.warp_keys
            inside = first + m * FRAGMENT_KEYS < self.run_keys
            instead = None if otherwise is None else otherwise(m, r)
            statement = tirx.IfThenElse(inside, statement, instead)
        fragments = tile.warp_keys // FRAGMENT_KEYS
        return unrolled(m, fragments, unrolled(r, 2, statement))

    def score(self, at: Score) -> tirx.Expr:
        """Place of a score in the registers of a lane."""
        u = at.key
        return self.place(at.step) + at.fragment * FRAGMENT + u // 2 * 4 + at.row * 2 + u % 2

    def indices(self, at: Score) -> list[tirx.Expr]:
        """Batch, head, row and key of a score."""
        row = self.first_row + self.row_group * CHUNK + self.lane_row + at.row * 8
        return [self.batch, self.head, row, self.first_key(at.step) + self.key(at)]

    def key(self, at: Score) -> tirx.Expr:
        """Key of a score, counted from the first one of its step."""
        own = self.key_group * self.tile.warp_keys + at.fragment * FRAGMENT_KEYS
        return own + at.key // 2 * 8 + self.lane_column * 2 + at.key % 2

    def key_leaf(self, at: Score) -> dict[tirx.Var, Leaf]:
        """How stages read what is known of the key of a score."""
        if self.key_info is None:
            return {}
        return {self.key_info.buffer: lambda indices: self.call("key", self.key(at), dtype="int32")}

    def reads_key_info(self, stage: StageDefinition) -> bool:
        """Whether a stage looks at what is known of a key, besides its score."""
        return self.key_info is not None and reads(stage.value, self.key_info.buffer)

    def assign(
        self,
        to: tirx.Var,
        place: tirx.Expr,
        stage: StageDefinition,
        indices: Sequence[tirx.Expr],
        leaves: Mapping[tirx.Var, Leaf],
    ) -> list[tirx.Stmt]:
        """Compute an entry of a stage into a register."""
        evaluation = self.graph.evaluate(leaves)
        value = evaluation.value(stage, indices)
        return self.store(to, place, value, evaluation.bindings)

    def store(
        self, to: tirx.Var, place: tirx.Expr, value: tirx.Expr, bindings: Sequence[tirx.Stmt]
    ) -> list[tirx.Stmt]:
        """Store a value in a register, without the cast to the type that it is stored in later."""
        dtype = str(to.ty.dtype)
        if isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == dtype:
            value = value.value  # to the type that it is stored in, which holds it
        return [*bindings, tirx.BufferStore(to, value.astype(dtype), [place])]


def reader(buffer: tirx.Var, place: tirx.Expr) -> Leaf:
    """Leaf that is in a register."""
    return lambda indices: tirx.BufferLoad(buffer, [place])
