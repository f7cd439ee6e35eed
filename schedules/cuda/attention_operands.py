"""Where attention reads its operands, as its stages say."""

from __future__ import annotations

from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, sym, tirx

from ..attention_stages import AttentionStages
from ..key_blocks import WINDOW
from ..nodes import substituted
from ..stages import CHOICE, NotElementwise, StageDefinition, StageGraph, loads_of
from .attention_tile import AttentionSizes

_BYTES = {"int8": 1, "uint8": 1, "int16": 2, "int32": 4}


@dataclass(frozen=True)
class Operand:
    """Q, K or V in device memory.

    Attributes
    ----------
    buffer
        [tokens, channels] int8, or int16 of wide V.
    offset
        First channel of the first head.
    sharing
        Heads of the queries that read the same channels.
    low_bits
        Bits of the low one of the two parts that wide V is read in; 0 of what is read as it is.
    """

    buffer: tirx.Var
    offset: int
    sharing: int = 1
    low_bits: int = 0

    @property
    def stride(self) -> int:
        """Bytes from one token to the next."""
        return int(self.buffer.ty.shape[1]) * _BYTES[str(self.buffer.ty.dtype)]


class SoftmaxStages(AttentionStages):
    """An attention whose weights come from a maximum and a sum over the keys of each row.

    Attributes
    ----------
    row_max, row_sum
        The two reductions.
    scored, exponential
        Entries that they reduce.
    key_info
        What is known of each key, which entries read; None where nothing is.

    Raises
    ------
    NotElementwise
        If reductions are others.
    """

    def __init__(self, graph: StageGraph) -> None:
        super().__init__(graph)
        reductions = [graph.stages[name] for name in self.reductions]
        if [stage.combine for stage in reductions] != ["max", "sum"] or self.lanes:
            raise NotElementwise("rows of scores are not reduced to a maximum and then to a sum")
        self.row_max, self.row_sum = reductions
        self.scored, self.exponential = (
            graph.stages[next(iter(graph.reads(stage)))] for stage in reductions
        )
        read = [graph.stages[name] for name in graph.reads(self.scored)]
        # What belongs to a pair of query and key is computed where the score is.
        pairs = len(self.scores.stage.extents)
        known = [stage for stage in read if len(stage.extents) < pairs]
        self.key_info = known[0] if known else None
        reduced = [stage for stage in read if stage.reduced and stage is not self.scores.stage]
        if len(known) > 1 or set(map(id, reduced)) - set(map(id, known)):
            raise NotElementwise("scores read more than their product and one number of the key")

    @property
    def normalised(self) -> bool:
        """Whether weights are exponentials that were divided by their sum."""
        return self.weights is not self.exponential


def attention_sizes(func: tirx.PrimFunc, graph: StageGraph) -> AttentionSizes:
    """Read the sizes of an attention kernel off its stages, and its window off its attributes.

    Parameters
    ----------
    func
        The kernel.
    graph
        Its stages.

    Raises
    ------
    NotElementwise
        If it has other stages than emission's attention, or results of another type.
    """
    stages = SoftmaxStages(graph)
    result = result_stage(graph)
    dtype = str(result.buffer.ty.dtype)
    if dtype not in _BYTES:
        raise NotElementwise(f"attention with results of {dtype}")
    batch, seq_len, heads, head_dim = result.extents
    keys = stages.scores.stage.extents[3]
    parts = 2 if stages.parts else 1
    sizes = AttentionSizes(batch, heads, seq_len, head_dim, keys, _BYTES[dtype], parts)
    if func.attrs is None or WINDOW not in func.attrs:
        return sizes
    before, after, _length = (int(size) for size in func.attrs[WINDOW])
    return replace(sizes, before=before, after=after)


def result_stage(graph: StageGraph) -> StageDefinition:
    """Stage that writes the result, [batch, seq_len, heads, head_dim].

    Raises
    ------
    NotElementwise
        If the kernel writes something else, or more.
    """
    found = [graph.producer(buffer) for buffer in graph.outputs]
    if len(found) == 1 and found[0] is not None and len(found[0].extents) == 4:
        return found[0]
    raise NotElementwise(f"attention writes {len(found)} arrays, or not by head")


def attention_operands(
    graph: StageGraph, sizes: AttentionSizes
) -> tuple[Operand, Operand, Operand]:
    """Find queries, keys and values.

    Parameters
    ----------
    graph
        The kernel.
    sizes
        Its sizes.

    Raises
    ------
    NotElementwise
        If a stage reads anything but entry (batch * seq_len + token, head // sharing * head_dim +
        channel + offset) of an int8 array, or of values its high and low parts. Queries of packed
        tokens have row starts[batch] + token instead.
    """
    batch, head, token, channel = (
        tirx.Var(name, "int32") for name in ("batch", "head", "token", "channel")
    )
    analyzer = sym.Analyzer()
    extents = (sizes.batch, sizes.heads, sizes.seq_len, sizes.head_dim)
    for var, extent in zip((batch, head, token, channel), extents, strict=True):
        analyzer.bind(var, ir.Range(0, extent))
    zero = tirx.const(0, "int32")
    stages = AttentionStages(graph)
    run = stages.keys.extents[-1]
    places = (
        (stages.queries, [batch, head, token, channel]),
        (stages.keys, [batch, head, token, channel // run, zero, channel % run]),
        (stages.values, [batch, head, channel, token // run, zero, token % run]),
    )
    found = []
    for stage, indices in places:
        load, low_bits = _read(graph, stage, indices, analyzer)
        if stage is stages.values and sizes.value_parts > 1:
            columns = stages.context.stage.extents[-1] // 2
            low = [batch, head, channel + columns, *indices[3:]]
            other, taken = _read(graph, stage, low, analyzer)
            same = tvm_ffi.structural_equal(load, other)
            if not (same and low_bits > 0 and taken == -low_bits):
                raise NotElementwise(f"stage {stage.name!r} reads other parts of its values")
        elif low_bits:
            raise NotElementwise(f"stage {stage.name!r} reads a part of its operand")
        row, column = (analyzer.simplify(index) for index in load.indices)
        offsets = (
            (analyzer.simplify(column - (head // sharing * sizes.head_dim + channel)), sharing)
            for sharing in range(1, sizes.heads + 1)
        )
        known = [(int(o), sharing) for o, sharing in offsets if isinstance(o, tirx.IntImm)]
        rows = [batch * sizes.seq_len + token]
        if stage is stages.queries:
            last = sizes.batch * sizes.seq_len - 1
            rows += [tirx.min(start + token, last) for start in loads_of(row)]
        in_order = any(analyzer.can_prove_equal(row, expected) for expected in rows)
        if not in_order or not known:
            raise NotElementwise(f"stage {stage.name!r} reads entry [{row}, {column}]")
        found.append(Operand(load.source, *known[0], low_bits))
    queries, keys, values = found
    return queries, keys, values


def reads(expr: tirx.Expr, buffer: tirx.Var) -> bool:
    """Whether an expression loads from a buffer."""
    return any(load.source.same_as(buffer) for load in loads_of(expr))


def _read(
    graph: StageGraph, stage: StageDefinition, indices: list[tirx.Expr], analyzer: sym.Analyzer
) -> tuple[tirx.BufferLoad, int]:
    """Load of the parameter that a stage copies, inside of the parameter, and the part of it.

    The part is 0 for all, n for what is left of n low bits, -n for these.
    """
    evaluation = graph.evaluate()
    value = evaluation.value(stage, indices)
    bound = {binding.var: binding.value for binding in evaluation.bindings}
    part, dtype = 0, "int8"
    shifts = (tirx.RShift, ir.prim.BitwiseAnd)
    while True:
        if isinstance(value, tirx.Var) and value in bound:
            value = bound[value]
        elif isinstance(value, tirx.Cast):
            value = value.value
        elif isinstance(value, ir.Call) and getattr(value.op, "name", "") == CHOICE:
            condition = analyzer.simplify(substituted(value.args[0], bound))
            is_false = isinstance(condition, tirx.IntImm) and not int(condition)
            # Zero where the array ends, the low part where the high ones do.
            value = value.args[2 if is_false else 1]
        elif isinstance(value, shifts) and isinstance(value.b, tirx.IntImm) and not part:
            is_high = isinstance(value, tirx.RShift)
            part = int(value.b) if is_high else -int(value.b).bit_length()
            value, dtype = value.a, "int16"
        else:
            break
    if isinstance(value, ir.TensorLoad) and str(value.source.ty.dtype) == dtype:
        indices = [analyzer.simplify(substituted(index, bound)) for index in value.indices]
        return tirx.BufferLoad(value.source, indices), part
    raise NotElementwise(f"stage {stage.name!r} computes something")
