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

from collections.abc import Sequence

from tvm import sym, tirx

from ibert_tvm.targets import Gpu

from ..key_blocks import WORK
from ..row_guard import with_blocks
from ..rule import GpuRule
from ..stages import Leaf, NotElementwise, StageDefinition
from ..tiles import without_tile
from .attention_parts import CHUNK, FRAGMENT, AttentionParts, Score, reader
from .runs import unpacked, unsaturated
from .statements import address, guarded, launch, sequence, serial, unrolled

# The loops are C's, with a pragma; TVM would write them out.
_KEEP_LOOPS = "pragma_unroll_explicit"


class AttentionRule(GpuRule):
    """Write kernels of two matrix products with a softmax between them."""

    name = "attention"

    def write(self, func: tirx.PrimFunc, gpu: Gpu) -> tirx.PrimFunc:
        """See the module's strategy."""
        kernel = _Kernel(func, gpu)
        # No sequence has more tokens than there are.
        written = with_blocks(without_tile(func), kernel.body(), 1, kernel.tile.rows)
        return written.with_attr(WORK, kernel.work(int(func.attrs[WORK])))


class _Kernel(AttentionParts):
    """The kernel, phase by phase."""

    def body(self) -> tirx.Stmt:
        """The kernel."""
        held = [self.scores, self.row_max, self.row_sum, self.context, self.four]
        held += [*self.row_values.values(), *self.own_values.values()]
        phases = self._with_held_scores() if self.tile.held else self._with_scores_twice()
        statements = [
            self.load_queries(),
            self.run("clear", address(self.context, 0), address(self.row_sum, 0)),
            *self._reset(self.row_max, self.stages.row_max.initial),
            *phases,
            *self._finish(),
        ]
        zero = tirx.const(0, "int32")
        inside = self.first_row < self.length if self.packed else None
        body = [
            *(tirx.AllocBuffer(buffer) for buffer in held),
            *self.bound,
            guarded(inside, sequence(statements)),
        ]
        kept = tirx.AttrStmt(zero, _KEEP_LOOPS, zero, sequence(body))
        return launch(kept, self.grid)

    def _with_held_scores(self) -> list[tirx.Stmt]:
        """Each step of K once, then each of V."""
        tile, only = self.tile, self.tile.steps == 1
        statements: list[tirx.Stmt] = []
        together = only and tile.value_tile
        for step in range(tile.steps):
            scores = [
                *([self.meet()] if step else []),
                self.load_both(step) if together else self.load("keys", step),
                self.set_keys(step),
                self.run("arrive<1>" if together else "arrive<0>"),
                *self._compute_scores(step),
                self._into_row_max(step),
            ]
            statements.append(self.where_seen(step, scores))
        statements.append(self._over_keys(self.row_max, self.stages.row_max))
        if self.normalised:
            for step in range(tile.steps):
                entries = [self._exponentials(step), self._into_row_sum(step)]
                if not only and self.reads_key_info(self.stages.exponential):
                    entries = [self.meet(), self.set_keys(step), self.meet(), *entries]
                statements.append(self.where_seen(step, entries))
            statements += self._finish_sum()
        for step in range(tile.steps):
            weights = [] if together else [self.meet(), self.load("values", step)]
            if not only and not self.normalised and self.reads_key_info(self.stages.exponential):
                weights += [self.set_keys(step), self.meet()]
            weights += [self._put_weights(step), self.run("arrive<0>"), self._weigh()]
            statements.append(self.where_seen(step, weights))
        return statements

    def _with_scores_twice(self) -> list[tirx.Stmt]:
        """Passes over the keys: maximum, (sum,) weights."""
        step = tirx.Var("step", "int32")

        def over_steps(*body: tirx.Stmt) -> tirx.Stmt:
            return serial(step, self.tile.steps, self.where_seen(step, body))

        def scores() -> list[tirx.Stmt]:
            return [
                self.meet(),
                self.load("keys", step),
                self.set_keys(step),
                self.run("arrive<0>"),
                *self._compute_scores(step),
            ]

        statements = [
            over_steps(*scores(), self._into_row_max(step)),
            self._over_keys(self.row_max, self.stages.row_max),
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
            self.meet(),
            self.load("values", step),
            self._put_weights(step),
            self.run("arrive<0>"),
            self._weigh(),
        ]
        return [*statements, over_steps(*weights)]

    def _finish(self) -> list[tirx.Stmt]:
        """Requantise the context and store it."""
        rows = [] if self.normalised else self._row_values()
        to = address(
            self.output,
            self.start + self.first_row,
            self.head * self.sizes.head_dim,
        )
        return [
            *rows,
            self.run("begin_results"),
            self._put_results(),
            self.run(
                "store_results", to, tirx.const(self.result_stride(), "int32"), self.valid_rows
            ),
        ]

    # -- scores ------------------------------------------------------------------------------

    def _compute_scores(self, step: tirx.Expr | int) -> list[tirx.Stmt]:
        """Products of a step, and the scores that they are."""
        from_keys = str(self.starts_from_keys).lower()
        products = self.run(f"scores<{from_keys}>", address(self.scores, self.place(step)))
        if self.starts_from_keys:
            return [products]
        stage, product = self.stages.scored, self.stages.scores.stage

        def score(at: Score) -> list[tirx.Stmt]:
            place = self.score(at)
            leaves = {product.buffer: reader(self.scores, place), **self.key_leaf(at)}
            return self.assign(self.scores, place, stage, self.indices(at), leaves)

        return [products, self.each_entry(step, score)]

    def _reset(self, rows: tirx.Var, value: tirx.Expr) -> list[tirx.Stmt]:
        """Give both rows a value."""
        return [tirx.BufferStore(rows, value, [tirx.const(r, "int32")]) for r in range(2)]

    def _into(
        self, rows: tirx.Var, stage: StageDefinition, source: StageDefinition, step: tirx.Expr | int
    ) -> tirx.Stmt:
        """Reduce what the lane has of its two rows."""
        combine = tirx.max if stage.combine == "max" else tirx.Add

        def term(at: Score) -> list[tirx.Stmt]:
            evaluation = self.graph.evaluate({source.buffer: reader(self.scores, self.score(at))})
            indices = self.indices(at)
            value = evaluation.value(stage, indices[:3], indices[3:])
            combined = combine(tirx.BufferLoad(rows, [at.row]), value)
            return [*evaluation.bindings, tirx.BufferStore(rows, combined, [at.row])]

        return self.each_entry(step, term)

    def _into_row_max(self, step: tirx.Expr | int) -> tirx.Stmt:
        return self._into(self.row_max, self.stages.row_max, self.stages.scored, step)

    def _into_row_sum(self, step: tirx.Expr | int) -> tirx.Stmt:
        return self._into(self.row_sum, self.stages.row_sum, self.stages.exponential, step)

    def _over_keys(self, rows: tirx.Var, stage: StageDefinition) -> tirx.Stmt:
        largest = str(stage.combine == "max").lower()
        return self.run(f"over_keys<{largest}>", address(rows, 0))

    # -- weights ------------------------------------------------------------------------------

    def _row_leaves(self, row: tirx.Expr) -> dict[tirx.Var, Leaf]:
        """How stages read what has one entry per row."""
        stages = self.graph.stages
        return {stages[name].buffer: reader(rows, row) for name, rows in self.row_values.items()}

    def _entry_leaves(self, at: Score, held: StageDefinition) -> dict[tirx.Var, Leaf]:
        """How stages of entries read others; `held` is what the registers of scores hold."""
        return {
            held.buffer: reader(self.scores, self.score(at)),
            self.stages.row_max.buffer: reader(self.row_max, at.row),
            **self._row_leaves(at.row),
            **self.key_leaf(at),
        }

    def _exponentials(self, step: tirx.Expr | int) -> tirx.Stmt:
        """Exponentials in the place of their scores."""
        stage = self.stages.exponential
        scored = self.stages.scored

        def exponential(at: Score) -> list[tirx.Stmt]:
            leaves = self._entry_leaves(at, scored)
            return self.assign(self.scores, self.score(at), stage, self.indices(at), leaves)

        return self.each_entry(step, exponential)

    def _finish_sum(self) -> list[tirx.Stmt]:
        """Sum of each row's exponentials, and what divides by it."""
        stage = self.stages.row_sum
        # The registers count weights after that, which nobody reads.
        clear = self._reset(self.row_sum, tirx.const(0, "int32"))
        return [self._over_keys(self.row_sum, stage), *self._row_values(), *clear]

    def _row_values(self) -> list[tirx.Stmt]:
        """Stages that have one entry per row, by one lane of two, for both."""
        stages = self.graph.stages
        first, second = (tirx.BufferLoad(self.row_sum, [tirx.const(r, "int32")]) for r in (0, 1))
        own_sum = tirx.Var("own_sum", "int32")
        statements: list[tirx.Stmt] = [
            tirx.Bind(own_sum, self.call("own_row", first, second, dtype="int32"))
        ]
        zero = tirx.const(0, "int32")
        leaves: dict[tirx.Var, Leaf] = {self.stages.row_sum.buffer: lambda indices: own_sum}
        for name, rows in self.row_values.items():
            stage, own = stages[name], self.own_values[name]
            indices = [self.batch, self.head, self.first_row]
            statements += self.assign(own, zero, stage, indices, leaves)
            leaves[stage.buffer] = reader(own, zero)
            statements.append(self.run("both_rows", tirx.BufferLoad(own, [zero]), address(rows, 0)))
        return statements

    def _put_weights(self, step: tirx.Expr | int) -> tirx.Stmt:
        """Bytes for P V, of which the device code does the last shift, two at a time."""
        stage, scored = self.weights, self.stages.scored
        held = self.stages.exponential if self.normalised else scored
        shifts: set[int] = set()

        def weight(at: Score) -> list[tirx.Stmt]:
            evaluation = self.graph.evaluate(self._entry_leaves(at, held))
            value, shift = _unshifted(evaluation.value(stage, self.indices(at)))
            shifts.add(shift)
            return self.store(self.four, at.key, value, evaluation.bindings)

        def put(m: tirx.Expr, r: tirx.Expr) -> tirx.Stmt:
            (shift,) = shifts
            return self.run(f"put_weights<{shift}>", m, r, address(self.four, 0))

        def nothing(m: tirx.Expr, r: tirx.Expr) -> tirx.Stmt:
            u = tirx.Var("u", "int32")
            none = tirx.BufferStore(self.four, tirx.const(0, "int32"), [u])
            return sequence([unrolled(u, 4, none), put(m, r)])

        return self.each_entry(step, weight, put, nothing)

    def _weigh(self) -> tirx.Stmt:
        return self.run("weigh", address(self.context, 0), address(self.row_sum, 0))

    # -- results ------------------------------------------------------------------------------

    def _put_results(self) -> tirx.Stmt:
        tile, sizes = self.tile, self.sizes
        c, r, u = (tirx.Var(name, "int32") for name in ("c", "r", "u"))
        column = (self.key_group + c * tile.key_groups) * CHUNK + self.lane_column * 4 + u
        if tile.key_groups * self.columns * CHUNK > sizes.head_dim:
            column = tirx.min(column, sizes.head_dim - 1)  # not stored
        row = self.first_row + self.row_group * CHUNK + self.lane_row + r * 8
        place = c * FRAGMENT + r * 4 + u
        low_parts = self.stages.context.stage.extents[-1] // sizes.value_parts
        analyzer = sym.Analyzer()

        def context(indices: Sequence[tirx.Expr]) -> tirx.Expr:
            for part in range(sizes.value_parts):
                if analyzer.can_prove_equal(indices[-1], column + part * low_parts):
                    ahead = tirx.const(part * FRAGMENT * self.columns, "int32")
                    return tirx.BufferLoad(self.context, [place + ahead])
            raise NotElementwise(f"results read the context of column {indices[-1]}")

        leaves = {self.stages.context.stage.buffer: context, **self._row_leaves(r)}
        result = self.result
        evaluation = self.graph.evaluate(leaves)
        indices = (self.batch, row, self.head, column)
        value = evaluation.expression(result.value, dict(zip(result.axes, indices, strict=True)))
        dtype = str(result.buffer.ty.dtype)
        if str(unpacked(value).ty.dtype) == "int32":  # more bits would be lost, not saturated
            value = unsaturated(unpacked(value), dtype)
        stored = self.store(self.four, u, value, evaluation.bindings)
        put = self.run(f"put_results<{dtype}_t>", c, r, address(self.four, 0))
        body = sequence([unrolled(u, 4, sequence(stored)), put])
        return unrolled(c, self.columns, unrolled(r, 2, body))


def _unshifted(weight: tirx.Expr) -> tuple[tirx.Expr, int]:
    """A byte, without a shift to the right by up to eight that is its last step, and that shift.

    What is shifted has sixteen bits then.
    """
    value = weight
    while isinstance(value, tirx.Cast):
        value = value.value
    shift = value.b if isinstance(value, tirx.RShift) else None
    if isinstance(shift, tirx.IntImm) and 0 < int(shift) <= 8 and str(value.ty.dtype) == "int32":
        return value.a, int(shift)
    return weight, 0
