"""Single kernels of row operations, emitted exactly as the compiler emits them for a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.emit.group import GroupEmitter
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.spec.short_layer_norm import INPUT_LIMIT
from ibert_tvm.relay_passes.spec.short_requantise import short_factors
from ibert_tvm.targets import TargetDescription
from tests.lowering import layout_of
from tests.passes.models import ProgramBuilder

Bounds = tuple[int, int]
STREAM = (-INPUT_LIMIT, INPUT_LIMIT)
INT8 = (-127, 127)


@dataclass(frozen=True, eq=False)
class RowKernel:
    """One kernel to schedule, build and run.

    Attributes
    ----------
    name
        What it computes.
    func
        Unscheduled kernel; its buffers are `inputs` and then `outputs`.
    inputs, outputs
        Arrays to call it with, and what it must answer.
    entries
        Entries of the row operation, for counts per entry.
    """

    name: str
    func: tirx.PrimFunc
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    entries: int


class RowProgram(ProgramBuilder):
    """The function of one fused kernel under construction, with random constants.

    Parameters
    ----------
    name, kind
        Of the kernel, and of its first operator.
    rows, channels
        What most kernels of rows are made for.
    seed
        Of the numbers.
    """

    def __init__(self, name: str, kind: str, rows: int, channels: int, seed: int) -> None:
        self.name, self.kind, self.rows, self.channels = name, kind, rows, channels
        super().__init__(seed)
        self.arrays: dict[str, np.ndarray] = {}
        self.bounds: dict[str, Bounds] = {}
        self.inputs: list[relax.Var] = []

    @property
    def shape(self) -> tuple[int, int, int]:
        """[1, rows, channels]."""
        return (1, self.rows, self.channels)

    def entries(self, bounds: Bounds, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Random integers; the first are the ends of the interval, and what lies round 0."""
        low, high = bounds
        array = self.random.integers(low, high + 1, shape)
        edges = [
            value for value in (low, low + 1, -1, 0, 1, high - 1, high) if low <= value <= high
        ]
        array.reshape(-1)[: len(edges)] = edges[: array.size]
        return array.astype(dtype)

    def input(self, name: str, array: np.ndarray, bounds: Bounds | None = None) -> relax.Var:
        """Add an input [batch, seq_len(, channels)], with proven bounds."""
        self.arrays[name] = array
        if bounds is not None:
            self.bounds[name] = bounds
        self.inputs.append(relax.Var(name, relax.TensorType(array.shape, str(array.dtype))))
        return self.inputs[-1]

    def rows_of(self, name: str, bounds: Bounds = STREAM, dtype: str = "int16") -> relax.Var:
        """Add an input of random rows; by default a stream of 15 bits."""
        return self.input(name, self.entries(bounds, self.shape, dtype), bounds)

    def mask(self, padded_first: bool = True) -> relax.Var:
        """Add a mask of the rows: the last quarter is padding, and the first row if asked for."""
        mask = np.ones((1, self.rows), "int32")
        mask[:, self.rows - self.rows // 4 :] = 0
        if padded_first:
            mask[:, :1] = 0
        return self.input("mask", mask)

    def constants(
        self, name: str, bounds: Bounds, dtype: str = "int32", count: int | None = None
    ) -> relax.Var:
        """Add random constants, one for each channel unless told otherwise."""
        shape = (self.channels if count is None else count,)
        return self.parameter(name, self.entries(bounds, shape, dtype))

    def narrowed(
        self,
        name: str,
        x: relax.Var,
        factors: np.ndarray,
        magnitude: int,
        bounds: Bounds = INT8,
        dtype: str = "int8",
        zero_point: int = 0,
    ) -> relax.Var:
        """Bind a requantisation in 16 bits."""
        low, high = bounds
        constants = short_factors(factors, magnitude, low, high, zero_point)
        return self.emit(
            integer.requantise_short(
                x,
                self.parameter(f"{name}.multiplier", constants.multipliers),
                self.parameter(f"{name}.pre_shift", constants.pre_shifts),
                name=name,
                shift=constants.shift,
                low=low,
                high=high,
                dtype=dtype,
                zero_point=zero_point,
            )
        )

    def narrowed_wide(self, x: relax.Var, multiplier: np.ndarray, shift: int) -> relax.Var:
        """Bind a requantisation to 8 bits by multipliers of any width."""
        factor = self.parameter("out.multiplier", multiplier.astype("int32"))
        bounds = {"low": INT8[0], "high": INT8[1], "dtype": "int8"}
        return self.emit(integer.requantise(x, factor, name="out", shift=shift, **bounds))

    def finish(self, target: TargetDescription, body: Body, entries: int) -> RowKernel:
        """Emit the kernel whose results `body` binds, and evaluate it by the specification."""
        attrs = {"ibert.kernel": self.kind, "ibert.layer": self.name}
        module = self.built(self.inputs, lambda: body(self))
        module["main"] = module["main"].with_attrs(attrs)
        batch = next(iter(self.arrays.values())).shape[0]
        emitter = GroupEmitter(layout_of(target), self.parameters, self.bounds, batch)
        return RowKernel(
            self.name,
            emitter.emit(module["main"]),
            [stored(array) for array in (*self.arrays.values(), *self.parameters.values())],
            [stored(result) for result in evaluate(module, self.arrays, self.parameters)],
            entries,
        )


Body = Callable[[RowProgram], Sequence[relax.Var]]
"""Adds inputs and constants to a program, and binds its results."""


def stored(array: np.ndarray) -> np.ndarray:
    """As kernels pass values on: tokens of all sequences are one axis."""
    return np.ascontiguousarray(array.reshape(-1, array.shape[-1]) if array.ndim == 3 else array)
