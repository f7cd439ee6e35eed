"""Attention on a GPU: one block per tile of query rows of a head, nothing but results in memory.

Strategy
--------
1. Queries, keys and values of the tile come to shared memory, 16 bytes at a time. What is known of
   a key (its offset, or whether it counts) is computed once per block.
2. Q K^T on tensor cores; scores stay in registers. Their maximum is complete before the first
   exponential, as the specification has it: keys come in *steps*, and either the scores of all
   steps are held, or, for sequences that are too long for that, computed again.
3. Weights go to shared memory as bytes, and P V is a product of unsigned by signed bytes. The sum
   of a row's weights is a product with ones.
4. What is divided by a row's sum is computed by one lane of two; the requantised results leave
   through shared memory in the widest stores that their alignment allows.

The steps are device functions (``targets/cuda/device/attention.cuh``); the arithmetic between them
is that of the kernel's stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tvm import ir, tirx

from targets import Gpu, TargetDescription

from ..rule import Rejection, kernel_name
from .attention_operands import (
    Operand,
    attention_operands,
    attention_sizes,
    reads,
    result_stage,
)
from .attention_tile import AttentionSizes, AttentionTile, attention_tile
from .stages import Leaf, NotElementwise, StageDefinition, StageGraph
from .statements import (
    WARP,
    address,
    call,
    guarded,
    launch,
    registers,
    sequence,
    serial,
    thread,
    unrolled,
)

_CHUNK = 16
# Keys of a fragment, and entries of one that a lane has: two rows of four keys.
_FRAGMENT_KEYS = 16
_FRAGMENT = 8
# The loops are C's, with a pragma; TVM would write them out.
_KEEP_LOOPS = "pragma_unroll_explicit"


class AttentionRule:
    """Write kernels of kind ``attention``."""

    name = "attention"

    def apply(self, func: tirx.PrimFunc, target: TargetDescription) -> tirx.PrimFunc | Rejection:
        """See the module's strategy."""
        if kernel_name(func) != "attention":
            return Rejection(self.name, f"the kernel is {kernel_name(func)!r}, not 'attention'")
        if target.gpu is None:
            return Rejection(self.name, f"target {target.name} is no GPU")
        try:
            return func.with_body(_Kernel(StageGraph.of(func), target.gpu).body())
        except NotElementwise as error:
            return Rejection(self.name, str(error))


class _Kernel:
    """The kernel under construction.

    Parameters
    ----------
    graph
        Its stages.
    gpu
        What it runs on.
    """

    def __init__(self, graph: StageGraph, gpu: Gpu) -> None:
        self.graph = graph
        self.sizes: AttentionSizes = attention_sizes(graph)
        self.queries, self.keys, self.values = attention_operands(graph, self.sizes)
        self.tile: AttentionTile = attention_tile(self.sizes, gpu)
        (self.output,) = graph.outputs
        self.result = result_stage(graph)
        self.normalised = "probability" in graph.stages
        self.weights = graph.stages["probability" if self.normalised else "exponential"]
        if str(self.weights.buffer.ty.dtype) != "uint8":
            raise NotElementwise("the weights of attention are not stored as unsigned bytes")
        self.key_info = graph.stages.get("key_offset") or graph.stages.get("valid")
        self.starts_from_keys = self._scores_are_sums()
        self.row_stages = self._stages_of_rows()
        self._name_threads()
        self._declare_registers()

    def _scores_are_sums(self) -> bool:
        """Whether a score is a product and what is known of its key, added."""
        value = self.graph.stages["scores"].value
        if self.key_info is None or not isinstance(value, tirx.Add):
            return False
        terms = (self.graph.stages["score_products"].buffer, self.key_info.buffer)
        read = [part.source for part in (value.a, value.b) if isinstance(part, ir.TensorLoad)]
        return len(read) == 2 and all(any(x.same_as(y) for y in read) for x in terms)

    def _stages_of_rows(self) -> list[StageDefinition]:
        """Stages that make something of a row's sum, in order."""
        buffers = [self.graph.stages["row_sum"].buffer]
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
            self.batch: ("blockIdx.z", sizes.batch),
            self.head: ("blockIdx.y", sizes.heads),
            self.tile_index: ("blockIdx.x", -(-sizes.seq_len // tile.rows)),
            self.thread: ("threadIdx.x", tile.threads),
        }
        self.first_row = self.tile_index * tile.rows
        self.valid_rows = tirx.min(sizes.seq_len - self.first_row, tile.rows)
        if sizes.seq_len % tile.rows == 0:
            self.valid_rows = tirx.const(tile.rows, "int32")
        warp = self.thread // WARP
        self.row_group, self.key_group = warp % tile.row_groups, warp // tile.row_groups
        lane = self.thread % WARP
        self.lane_row, self.lane_column = lane // 4, lane % 4

    def _declare_registers(self) -> None:
        tile, sizes = self.tile, self.sizes
        self.columns = -(-(sizes.depth // _CHUNK) // tile.key_groups)
        self.scores = registers("scores", tile.scores, "int32")
        self.row_max = registers("row_max", 2, "int32")
        self.row_sum = registers("row_sum", 2, "int32")
        self.context = registers("context", _FRAGMENT * self.columns, "int32")
        self.four = registers("four", 4, "int32")
        self.row_values = {
            stage.name: registers(stage.name, 2, str(stage.buffer.ty.dtype))
            for stage in self.row_stages
        }
        self.own_values = {
            stage.name: registers(f"own_{stage.name}", 1, str(stage.buffer.ty.dtype))
            for stage in self.row_stages
        }

    def _call(self, function: str, *arguments: tirx.Expr, dtype: str = "void") -> tirx.Expr:
        """Call of a step of the device code."""
        tile, sizes = self.tile, self.sizes
        stride = self._result_stride()
        unit = math.gcd(
            _CHUNK,
            sizes.head_dim,
            *(x for o in (self.queries, self.keys, self.values) for x in (o.stride, o.offset)),
        )
        result_unit = math.gcd(_CHUNK, sizes.head_dim * sizes.result_bytes, stride)
        parameters = (
            tile.row_groups,
            tile.key_groups,
            sizes.head_dim,
            tile.step_keys,
            unit,
            sizes.result_bytes,
            result_unit,
            str(tile.value_tile).lower(),
        )
        listed = ", ".join(map(str, parameters))
        return call(f"ibert::Attention<{listed}>::{function}", *arguments, dtype=dtype)

    def _run(self, function: str, *arguments: tirx.Expr) -> tirx.Stmt:
        return tirx.Evaluate(self._call(function, *arguments))

    def _result_stride(self) -> int:
        return self.sizes.heads * self.sizes.head_dim * self.sizes.result_bytes

    # -- the whole ----------------------------------------------------------------------------

    def body(self) -> tirx.Stmt:
        """The kernel."""
        held = [self.scores, self.row_max, self.row_sum, self.context, self.four]
        held += [*self.row_values.values(), *self.own_values.values()]
        phases = self._with_held_scores() if self.tile.held else self._with_scores_twice()
        statements = [
            *(tirx.AllocBuffer(buffer) for buffer in held),
            self._load_queries(),
            self._run("clear", address(self.context, 0), address(self.row_sum, 0)),
            *self._reset(self.row_max, self.graph.stages["row_max"]),
            *phases,
            *self._finish(),
        ]
        zero = tirx.const(0, "int32")
        kept = tirx.AttrStmt(zero, _KEEP_LOOPS, zero, sequence(statements))
        return launch(kept, self.grid)

    def _with_held_scores(self) -> list[tirx.Stmt]:
        """Each step of K once, then each of V."""
        tile, only = self.tile, self.tile.steps == 1
        statements: list[tirx.Stmt] = []
        together = only and tile.value_tile
        for step in range(tile.steps):
            if step:
                statements.append(self._meet())
            statements += [
                self._load_both(step) if together else self._load("keys", step),
                self._set_keys(step),
                self._run("arrive<1>" if together else "arrive<0>"),
                *self._compute_scores(step),
                self._into_row_max(step),
            ]
        statements.append(self._over_keys(self.row_max, self.graph.stages["row_max"]))
        if self.normalised:
            for step in range(tile.steps):
                if not only and self._reads_key_info("exponential"):
                    statements += [self._meet(), self._set_keys(step), self._meet()]
                statements += [self._exponentials(step), self._into_row_sum(step)]
            statements += self._finish_sum()
        for step in range(tile.steps):
            if not together:
                statements += [self._meet(), self._load("values", step)]
            if not only and not self.normalised and self._reads_key_info("exponential"):
                statements.append(self._set_keys(step))
                statements.append(self._meet())
            statements += [self._put_weights(step), self._run("arrive<0>"), self._weigh()]
        return statements

    def _with_scores_twice(self) -> list[tirx.Stmt]:
        """Passes over the keys: maximum, (sum,) weights."""
        step = tirx.Var("step", "int32")

        def over_steps(*body: tirx.Stmt) -> tirx.Stmt:
            return serial(step, self.tile.steps, sequence(list(body)))

        def scores() -> list[tirx.Stmt]:
            return [
                self._meet(),
                self._load("keys", step),
                self._set_keys(step),
                self._run("arrive<0>"),
                *self._compute_scores(step),
            ]

        statements = [
            over_steps(*scores(), self._into_row_max(step)),
            self._over_keys(self.row_max, self.graph.stages["row_max"]),
        ]
        if self.normalised:
            statements += [
                over_steps(*scores(), self._exponentials(step), self._into_row_sum(step)),
                *self._finish_sum(),
            ]
        again = [self._exponentials(step)] if self.normalised else []
        weights = [
            *scores(),
            *again,
            self._meet(),
            self._load("values", step),
            self._put_weights(step),
            self._run("arrive<0>"),
            self._weigh(),
        ]
        return [*statements, over_steps(*weights)]

    def _finish(self) -> list[tirx.Stmt]:
        """Requantise the context and store it."""
        rows = [] if self.normalised else self._row_values()
        to = address(
            self.output,
            self.batch * self.sizes.seq_len + self.first_row,
            self.head * self.sizes.head_dim,
        )
        return [
            *rows,
            self._run("begin_results"),
            self._put_results(),
            self._run(
                "store_results",
                to,
                tirx.const(self._result_stride(), "int32"),
                self.valid_rows,
            ),
        ]

    # -- loads --------------------------------------------------------------------------------

    def _pointer(self, operand: Operand, token: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        channel = self.head * self.sizes.head_dim + operand.offset
        row = self.batch * self.sizes.seq_len + token
        return address(operand.buffer, row, channel), tirx.const(operand.stride, "int32")

    def _load_queries(self) -> tirx.Stmt:
        return self._run(
            "load_queries", *self._pointer(self.queries, self.first_row), self.valid_rows
        )

    def _first_key(self, step: tirx.Expr | int) -> tirx.Expr:
        first = tirx.const(0, "int32") + step * self.tile.step_keys
        return first

    def _load(self, what: str, step: tirx.Expr | int) -> tirx.Stmt:
        operand = self.keys if what == "keys" else self.values
        first = self._first_key(step)
        valid = self.sizes.seq_len - first
        return self._run(f"load_{what}", *self._pointer(operand, first), valid)

    def _load_both(self, step: int) -> tirx.Stmt:
        first = self._first_key(step)
        return self._run(
            "load_step",
            *self._pointer(self.keys, first),
            *self._pointer(self.values, first),
            self.sizes.seq_len - first,
        )

    def _meet(self) -> tirx.Stmt:
        """Wait for all threads of the block."""
        return self._run("meet")

    def _set_keys(self, step: tirx.Expr | int) -> tirx.Stmt:
        """Compute once per block what is known of each key of a step."""
        if self.key_info is None:
            return tirx.Evaluate(tirx.const(0, "int32"))
        tile, stage = self.tile, self.key_info
        turn = tirx.Var("turn", "int32")
        place = turn * tile.threads + self.thread
        key = self._first_key(step) + place
        indices = [self.batch, key] if len(stage.extents) == 2 else [self.batch, self.head, key]
        evaluation = self.graph.evaluate()
        value = evaluation.entry(stage.buffer, indices)
        stored = sequence([*evaluation.bindings, self._run("set_key", place, value)])
        if tile.steps * tile.step_keys > self.sizes.keys:
            nothing = self._run("set_key", place, tirx.const(0, "int32"))  # nobody looks at it
            stored = tirx.IfThenElse(key < self.sizes.keys, stored, nothing)
        condition = place < tile.step_keys if tile.step_keys % tile.threads else None
        return unrolled(turn, -(-tile.step_keys // tile.threads), guarded(condition, stored))

    # -- scores -------------------------------------------------------------------------------

    def _place(self, step: tirx.Expr | int) -> tirx.Expr | int:
        """Where the scores of a step begin."""
        return step * (self.tile.warp_keys // 2) if self.tile.held else 0

    def _each_entry(
        self,
        step: tirx.Expr | int,
        body: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], Sequence[tirx.Stmt]],
        after: Callable[[tirx.Expr, tirx.Expr], tirx.Stmt] | None = None,
        otherwise: Callable[[tirx.Expr, tirx.Expr], tirx.Stmt] | None = None,
    ) -> tirx.Stmt:
        """Do something for every score of a step.

        Parameters
        ----------
        step
            Of the keys.
        body
            ``body(fragment, r, u)``: for key u of the four that a lane has of a row, r, of a
            fragment.
        after
            ``after(fragment, r)``, once `body` was done for four keys.
        otherwise
            Instead of both, where a fragment lies behind the last key.
        """
        m, r, u = (tirx.Var(name, "int32") for name in ("fragment", "r", "u"))
        inner = [unrolled(u, 4, sequence(list(body(m, r, u))))]
        if after is not None:
            inner.append(after(m, r))
        statement = sequence(inner)
        tile = self.tile
        if tile.steps * tile.step_keys > self.sizes.keys:
            first = self._first_key(step) + self.key_group * tile.warp_keys
            inside = first + m * _FRAGMENT_KEYS < self.sizes.keys
            instead = None if otherwise is None else otherwise(m, r)
            statement = tirx.IfThenElse(inside, statement, instead)
        fragments = tile.warp_keys // _FRAGMENT_KEYS
        return unrolled(m, fragments, unrolled(r, 2, statement))

    def _score(self, step: tirx.Expr | int, m: tirx.Expr, r: tirx.Expr, u: tirx.Expr) -> tirx.Expr:
        """Place of a score in the registers of a lane."""
        return self._place(step) + m * _FRAGMENT + u // 2 * 4 + r * 2 + u % 2

    def _indices(
        self, step: tirx.Expr | int, m: tirx.Expr, r: tirx.Expr, u: tirx.Expr
    ) -> list[tirx.Expr]:
        """Batch, head, row and key of a score."""
        row = self.first_row + self.row_group * _CHUNK + self.lane_row + r * 8
        return [self.batch, self.head, row, self._first_key(step) + self._key(m, u)]

    def _key(self, m: tirx.Expr, u: tirx.Expr) -> tirx.Expr:
        """Key of a score, counted from the first one of its step."""
        own = self.key_group * self.tile.warp_keys + m * _FRAGMENT_KEYS
        return own + u // 2 * 8 + self.lane_column * 2 + u % 2

    def _key_leaf(self, m: tirx.Expr, u: tirx.Expr) -> dict[tirx.Var, Leaf]:
        if self.key_info is None:
            return {}
        return {
            self.key_info.buffer: lambda indices: self._call("key", self._key(m, u), dtype="int32")
        }

    def _reads_key_info(self, name: str) -> bool:
        """Whether a stage looks at what is known of a key, besides its score."""
        stage = self.graph.stages[name]
        return self.key_info is not None and reads(stage.value, self.key_info.buffer)

    def _compute_scores(self, step: tirx.Expr | int) -> list[tirx.Stmt]:
        """Products of a step, and the scores that they are."""
        from_keys = str(self.starts_from_keys).lower()
        products = self._run(f"scores<{from_keys}>", address(self.scores, self._place(step)))
        if self.starts_from_keys:
            return [products]
        stage, product = self.graph.stages["scores"], self.graph.stages["score_products"]

        def score(m: tirx.Expr, r: tirx.Expr, u: tirx.Expr) -> list[tirx.Stmt]:
            place = self._score(step, m, r, u)
            leaves: dict[tirx.Var, Leaf] = {
                product.buffer: lambda indices: tirx.BufferLoad(self.scores, [place]),
                **self._key_leaf(m, u),
            }
            return self._assign(self.scores, place, stage, self._indices(step, m, r, u), leaves)

        return [products, self._each_entry(step, score)]

    def _assign(
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
        return self._store(to, place, value, evaluation.bindings)

    def _store(
        self, to: tirx.Var, place: tirx.Expr, value: tirx.Expr, bindings: Sequence[tirx.Stmt]
    ) -> list[tirx.Stmt]:
        dtype = str(to.ty.dtype)
        if isinstance(value, tirx.Cast) and str(value.value.ty.dtype) == dtype:
            value = value.value  # to the type that it is stored in, which holds it
        return [*bindings, tirx.BufferStore(to, value.astype(dtype), [place])]

    def _reset(self, rows: tirx.Var, stage: StageDefinition) -> list[tirx.Stmt]:
        """What a reduction starts from."""
        return [tirx.BufferStore(rows, stage.initial, [tirx.const(r, "int32")]) for r in range(2)]

    def _into(self, rows: tirx.Var, name: str, read: str, step: tirx.Expr | int) -> tirx.Stmt:
        """Reduce what the lane has of its two rows."""
        stage, source = self.graph.stages[name], self.graph.stages[read]
        combine = tirx.max if stage.combine == "max" else tirx.Add

        def term(m: tirx.Expr, r: tirx.Expr, u: tirx.Expr) -> list[tirx.Stmt]:
            place = self._score(step, m, r, u)
            leaves: dict[tirx.Var, Leaf] = {
                source.buffer: lambda indices: tirx.BufferLoad(self.scores, [place])
            }
            evaluation = self.graph.evaluate(leaves)
            indices = self._indices(step, m, r, u)
            value = evaluation.value(stage, indices[:3], indices[3:])
            combined = combine(tirx.BufferLoad(rows, [r]), value)
            return [*evaluation.bindings, tirx.BufferStore(rows, combined, [r])]

        return self._each_entry(step, term)

    def _into_row_max(self, step: tirx.Expr | int) -> tirx.Stmt:
        return self._into(self.row_max, "row_max", "scores", step)

    def _into_row_sum(self, step: tirx.Expr | int) -> tirx.Stmt:
        return self._into(self.row_sum, "row_sum", "exponential", step)

    def _over_keys(self, rows: tirx.Var, stage: StageDefinition) -> tirx.Stmt:
        largest = str(stage.combine == "max").lower()
        return self._run(f"over_keys<{largest}>", address(rows, 0))

    # -- weights ------------------------------------------------------------------------------

    def _entry_leaves(
        self, step: tirx.Expr | int, m: tirx.Expr, r: tirx.Expr, u: tirx.Expr, held: str
    ) -> dict[tirx.Var, Leaf]:
        """How stages of entries read others; `held` is what the registers of scores hold."""
        place = self._score(step, m, r, u)
        stages = self.graph.stages
        return {
            stages[held].buffer: lambda indices: tirx.BufferLoad(self.scores, [place]),
            stages["row_max"].buffer: lambda indices: tirx.BufferLoad(self.row_max, [r]),
            **{stages[name].buffer: _reader(rows, r) for name, rows in self.row_values.items()},
            **self._key_leaf(m, u),
        }

    def _exponentials(self, step: tirx.Expr | int) -> tirx.Stmt:
        """Exponentials in the place of their scores."""
        stage = self.graph.stages["exponential"]
        return self._each_entry(
            step,
            lambda m, r, u: self._assign(
                self.scores,
                self._score(step, m, r, u),
                stage,
                self._indices(step, m, r, u),
                self._entry_leaves(step, m, r, u, "scores"),
            ),
        )

    def _finish_sum(self) -> list[tirx.Stmt]:
        """Sum of each row's exponentials, and what divides by it."""
        stage = self.graph.stages["row_sum"]
        zero = tirx.const(0, "int32")
        # The registers count weights after that, which nobody reads.
        clear = [tirx.BufferStore(self.row_sum, zero, [tirx.const(r, "int32")]) for r in range(2)]
        return [self._over_keys(self.row_sum, stage), *self._row_values(), *clear]

    def _row_values(self) -> list[tirx.Stmt]:
        """Stages that have one entry per row, by one lane of two, for both."""
        stages = self.graph.stages
        first, second = (tirx.BufferLoad(self.row_sum, [tirx.const(r, "int32")]) for r in (0, 1))
        own_sum = tirx.Var("own_sum", "int32")
        statements: list[tirx.Stmt] = [
            tirx.Bind(own_sum, self._call("own_row", first, second, dtype="int32"))
        ]
        zero = tirx.const(0, "int32")
        leaves: dict[tirx.Var, Leaf] = {stages["row_sum"].buffer: lambda indices: own_sum}
        for name, rows in self.row_values.items():
            stage, own = stages[name], self.own_values[name]
            indices = [self.batch, self.head, self.first_row]
            statements += self._assign(own, zero, stage, indices, leaves)
            leaves[stage.buffer] = _reader(own, zero)
            statements.append(
                self._run("both_rows", tirx.BufferLoad(own, [zero]), address(rows, 0))
            )
        return statements

    def _put_weights(self, step: tirx.Expr | int) -> tirx.Stmt:
        """Bytes for P V."""
        stage, held = self.weights, "exponential" if self.normalised else "scores"

        def put(m: tirx.Expr, r: tirx.Expr) -> tirx.Stmt:
            return self._run("put_weights", m, r, address(self.four, 0))

        def nothing(m: tirx.Expr, r: tirx.Expr) -> tirx.Stmt:
            u = tirx.Var("u", "int32")
            none = tirx.BufferStore(self.four, tirx.const(0, "int32"), [u])
            return sequence([unrolled(u, 4, none), put(m, r)])

        return self._each_entry(
            step,
            lambda m, r, u: self._assign(
                self.four,
                u,
                stage,
                self._indices(step, m, r, u),
                self._entry_leaves(step, m, r, u, held),
            ),
            put,
            nothing,
        )

    def _weigh(self) -> tirx.Stmt:
        return self._run("weigh", address(self.context, 0), address(self.row_sum, 0))

    # -- results ------------------------------------------------------------------------------

    def _put_results(self) -> tirx.Stmt:
        tile, sizes, stages = self.tile, self.sizes, self.graph.stages
        c, r, u = (tirx.Var(name, "int32") for name in ("c", "r", "u"))
        column = (self.key_group + c * tile.key_groups) * _CHUNK + self.lane_column * 4 + u
        if tile.key_groups * self.columns * _CHUNK > sizes.head_dim:
            column = tirx.min(column, sizes.head_dim - 1)  # not stored
        row = self.first_row + self.row_group * _CHUNK + self.lane_row + r * 8
        place = c * _FRAGMENT + r * 4 + u
        leaves: dict[tirx.Var, Leaf] = {
            stages["context"].buffer: _reader(self.context, place),
            **{stages[name].buffer: _reader(rows, r) for name, rows in self.row_values.items()},
        }
        result = self.result
        evaluation = self.graph.evaluate(leaves)
        indices = (self.batch, row, self.head, column)
        value = evaluation.expression(result.value, dict(zip(result.axes, indices, strict=True)))
        stored = self._store(self.four, u, value, evaluation.bindings)
        put = self._run("put_results", c, r, address(self.four, 0))
        body = sequence([unrolled(u, 4, sequence(stored)), put])
        return unrolled(c, self.columns, unrolled(r, 2, body))


def _reader(buffer: tirx.Var, place: tirx.Expr) -> Leaf:
    """Leaf that is in a register."""
    return lambda indices: tirx.BufferLoad(buffer, [place])
