"""Runs of neighbouring channels: how the entries that a thread works on get into registers.

A thread takes `width` channels that lie next to each other, and maybe several such runs. Whatever
its expressions read is one of three things: the same for all channels of a run (a plain load),
channels that lie next to each other (loaded by accesses as wide as their place in memory allows,
16 bytes at most), or entries here and there (a load for each).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from .stages import Leaf
from .statements import address, call, guarded, registers, unrolled

_WIDEST_ACCESS = 16


@dataclass(frozen=True)
class RunOfChannels:
    """Channels of one thread.

    Attributes
    ----------
    width
        Channels that lie next to each other.
    first
        The first of them, in terms of `step`.
    lane
        Variable that counts the channels of a run.
    step, steps
        Variable that counts the runs of the thread, and how many there are.
    inside
        Whether the run that `step` counts exists; None where all do.
    analyzer
        Knows how far the variables run.
    """

    width: int
    first: tirx.Expr
    lane: tirx.Var
    step: tirx.Var
    steps: int
    inside: tirx.Expr | None
    analyzer: sym.Analyzer

    @staticmethod
    def of(
        width: int,
        first: Callable[[tirx.Var], tirx.Expr],
        steps: int,
        extents: dict[tirx.Var, int],
        inside: Callable[[tirx.Var], tirx.Expr] | None = None,
    ) -> RunOfChannels:
        """Channels of a thread.

        Parameters
        ----------
        width, steps
            As above.
        first, inside
            Take `step`.
        extents
            How far the variables of `first` run.

        Returns
        -------
        RunOfChannels
        """
        lane, step = tirx.Var("lane", "int32"), tirx.Var("step", "int32")
        analyzer = sym.Analyzer()
        for var, extent in {**extents, lane: width, step: steps}.items():
            analyzer.bind(var, ir.Range(0, extent))
        return RunOfChannels(
            width, first(step), lane, step, steps, inside(step) if inside else None, analyzer
        )

    @property
    def channel(self) -> tirx.Expr:
        """The channel that `lane` and `step` count."""
        return self.first + self.lane

    def each_step(self, body: tirx.Stmt) -> tirx.Stmt:
        """Do something for every run of the thread."""
        return unrolled(self.step, self.steps, guarded(self.inside, body))

    def each_lane(self, body: tirx.Stmt) -> tirx.Stmt:
        """Do something for every channel of a run."""
        return unrolled(self.lane, self.width, body)


class Loads:
    """What is read for the channels of a thread.

    Parameters
    ----------
    run
        The channels.
    kept
        Whether entries of all runs stay in registers, or only those of one at a time.

    Attributes
    ----------
    declarations
        Statements that must come first.
    copies
        Statements that load the run that `step` counts.
    """

    def __init__(self, run: RunOfChannels, kept: bool) -> None:
        self.run = run
        self.kept = kept
        self.declarations: list[tirx.Stmt] = []
        self.copies: list[tirx.Stmt] = []
        self._loaded: list[tuple[tirx.Var, tirx.Expr, tirx.Var]] = []

    def leaf(self, buffer: tirx.Var) -> Leaf:
        """How expressions read a parameter."""
        return lambda indices: self._read(buffer, indices)

    def _read(self, buffer: tirx.Var, indices: Sequence[tirx.Expr]) -> tirx.Expr:
        run = self.run
        load = tirx.BufferLoad(buffer, list(indices))
        if reads_memory(indices, run.lane):
            return load
        offset = flat_offset(buffer, indices)
        first = tvm_ffi.structural_map(offset, (ir.Var, self._at_first))
        distance = run.analyzer.simplify(offset - first)
        if run.width > 1 and tvm_ffi.structural_equal(distance, run.lane):
            return tirx.BufferLoad(self._registers(buffer, first), [self._place(run.lane)])
        if not self.kept or not _uses(distance, run.lane):
            return load if _uses(distance, run.lane) or not self.kept else self._single(load, first)
        return load

    def _single(self, load: tirx.Expr, first: tirx.Expr) -> tirx.Expr:
        del first
        return load

    def _at_first(self, var: tirx.Var) -> tirx.Expr:
        return tirx.const(0, "int32") if var.same_as(self.run.lane) else var

    def _place(self, lane: tirx.Expr) -> tirx.Expr:
        return self.run.step * self.run.width + lane if self.kept else lane

    def _registers(self, buffer: tirx.Var, first: tirx.Expr) -> tirx.Var:
        for known, place, held in self._loaded:
            if known.same_as(buffer) and tvm_ffi.structural_equal(place, first):
                return held
        run = self.run
        dtype = str(buffer.ty.dtype)
        count = run.width * (run.steps if self.kept else 1)
        held = registers(f"{buffer.name}_run", count, dtype)
        self._loaded.append((buffer, first, held))
        self.declarations.append(tirx.AllocBuffer(held))
        flat = tirx.decl_buffer(  # the same memory, counted from its first entry
            (math.prod(map(int, buffer.ty.shape)),), dtype, buffer.name, data=buffer.data
        )
        del flat
        size = itemsize(dtype)
        entries = access_width(run.analyzer, first, run.width, size)
        zero = tirx.const(0, "int32")
        for start in range(0, run.width, entries):
            self.copies.append(
                tirx.Evaluate(
                    call(
                        f"ibert::copy_bytes<{entries * size}>",
                        address(held, self._place(zero + start)),
                        address(buffer, *unflattened(buffer, first + start)),
                    )
                )
            )
        return held
