"""Results of a thread: numbers in 32 bits that go to memory as the narrower type they fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx

from ..stages import Evaluation, StageDefinition, StageGraph
from .runs import RunOfChannels, access_width, flat_offset, itemsize
from .statements import address, call, registers

_NARROW = ("int8", "uint8", "int16")
_BOUNDS = {"int8": (-128, 127), "uint8": (0, 255)}
_SATURATE = "tirx.ibert_saturate"


def unpacked(value: tirx.Expr) -> tirx.Expr:
    """Number that an expression narrows at the end: emission proved that it fits."""
    if isinstance(value, tirx.Cast) and _bits(value.value) > _bits(value):
        return value.value
    return value


def unsaturated(value: tirx.Expr, dtype: str) -> tirx.Expr:
    """Leave out the last clamps of a result where the store that packs it saturates anyway.

    Parameters
    ----------
    value
        int32, of an entry that is stored by ``ibert::store_packed`` or ``ibert::pack4_saturated``.
    dtype
        Type that it is stored as.

    Returns
    -------
    tvm.tirx.Expr
        Saturated to `dtype` it is the same number.
    """
    if dtype not in _BOUNDS:
        return value
    low, high = _BOUNDS[dtype]
    if isinstance(value, tirx.Max | tirx.Min) and isinstance(value.b, tirx.IntImm):
        inner, bound = unsaturated(value.a, dtype), int(value.b)
        if isinstance(value, tirx.Max):
            return inner if bound <= low else tirx.max(inner, value.b)
        return inner if bound >= high else tirx.min(inner, value.b)
    if getattr(getattr(value, "op", None), "name", "") == _SATURATE:
        half = 1 << (int(value.args[1]) - 1)
        return value.args[0] if -half <= low and high < half else value
    return value


class Store:
    """One output of a thread's channels.

    Parameters
    ----------
    run
        The channels.
    buffer
        Where they go, [..., channels].
    first
        Indices of the first channel of a run.

    Attributes
    ----------
    declaration
        Statement that must come first.
    write
        Statement that stores a run, behind `put` of all its lanes.
    """

    def __init__(self, run: RunOfChannels, buffer: tirx.Var, first: Sequence[tirx.Expr]) -> None:
        dtype = str(buffer.ty.dtype)
        size = itemsize(dtype)
        self._run = run
        self.dtype = "int32" if dtype in _NARROW else dtype
        self._held = registers(f"{buffer.name}_run", run.width, self.dtype)
        self.declaration = tirx.AllocBuffer(self._held)
        offset = flat_offset(buffer, first)
        entries = access_width(run.analyzer, offset, run.width, size)
        writes = []
        for start in range(0, run.width, entries):
            to = address(buffer, *first[:-1], first[-1] + start)
            held = address(self._held, start)
            bytes_ = entries * size
            if dtype in _NARROW:
                name = f"ibert::store_packed<{dtype}_t, {bytes_}>"
            else:
                name = f"ibert::copy_bytes<{bytes_}>"
            writes.append(tirx.Evaluate(call(name, to, held)))
        self.write = tirx.SeqStmt(writes) if len(writes) > 1 else writes[0]

    def put(self, value: tirx.Expr) -> tirx.Stmt:
        """Keep the entry of a lane until the run is stored."""
        return tirx.BufferStore(self._held, value.astype(self.dtype), [self._run.lane])


def _bits(value: tirx.Expr) -> int:
    return itemsize(str(value.ty)) * 8


@dataclass(frozen=True)
class Results:
    """All outputs of a thread's channels.

    Attributes
    ----------
    declarations
        Statements that must come first.
    entries
        Statements that compute the results of a run, and store them.
    """

    declarations: list[tirx.Stmt]
    entries: list[tirx.Stmt]

    @staticmethod
    def of(
        graph: StageGraph,
        evaluation: Evaluation,
        run: RunOfChannels,
        row: Sequence[tirx.Expr],
        results: Sequence[StageDefinition],
    ) -> Results:
        """Compute and store outputs.

        Parameters
        ----------
        graph
            The kernel's.
        evaluation
            Where entries are computed; it must be new.
        run
            The channels.
        row
            Indices of the row, without that of the channel.
        results
            Stages that write outputs [..., channels], in program order.

        Returns
        -------
        Results
        """
        puts, writes, declarations = [], [], []
        for stage in results:
            store = Store(run, stage.buffer, [*row, run.first])
            indices = [*row, run.channel]
            value = evaluation.value(stage, indices)
            if graph.readers(stage.buffer):
                # What other results are made of needs its bounds.
                value = unpacked(evaluation.define(stage.buffer, indices, value))
            else:
                value = unsaturated(unpacked(value), str(stage.buffer.ty.dtype))
            declarations.append(store.declaration)
            puts.append(store.put(value))
            writes.append(store.write)
        return Results(declarations, [run.each_lane(evaluation.before(*puts)), *writes])
