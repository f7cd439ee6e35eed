"""The kernels of a model that can be tuned, with inputs and the results that are right for them.

Results come from the integer specification: the fused function that a kernel was emitted from is
evaluated in NumPy. Activations are random over the interval that the range analysis proved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tvm import relax, tirx

    from ibert_tvm.relay_passes.emit import KernelLayout
    from ibert_tvm.relay_passes.passes.pipeline import Lowered
    from ibert_tvm.schedules.tiles import Tile
    from ibert_tvm.targets import TargetDescription

    from ..model.artefact import QuantizedModel


@dataclass(frozen=True)
class KernelTask:
    """One kernel to tune.

    Attributes
    ----------
    key
        What it computes (`ibert_tvm.schedules.tuning.workload_key`).
    kind, layer, name
        Kind of kernel; a layer that it is of; its name in the module.
    calls
        Calls of it in one run of all shapes.
    macs
        Multiply-accumulates of one call.
    function
        Unscheduled.
    space
        What can be tried, the default first.
    """

    key: str
    kind: str
    layer: str
    name: str
    calls: int
    macs: int
    function: tirx.PrimFunc
    space: tuple[Tile, ...]
    lowered: Lowered
    layout: KernelLayout

    def data(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Make inputs, and evaluate the specification on them.

        Returns
        -------
        inputs, results
            As the kernel takes and gives them.
        """
        return _Data(self).make()


def find_tasks(
    quantized: QuantizedModel, description: TargetDescription, shapes: list[tuple[int, int]]
) -> list[KernelTask]:
    """Lower a model as `compile` does, and find its kernels that can be tuned.

    Parameters
    ----------
    quantized
        The model.
    description
        The target.
    shapes
        (batch, tokens).

    Returns
    -------
    list of KernelTask
        The one with the most work first.
    """
    from tvm import relax

    from ibert_tvm.relay_passes.emit import KernelLayout
    from ibert_tvm.relay_passes.passes import (
        IntegerProgram,
        TargetKind,
        lower_to_kernels,
        phases_of,
    )
    from ibert_tvm.relay_passes.passes.share_kernels import called_kernels
    from ibert_tvm.schedules.tuning import tile_space, workload_key

    layout = KernelLayout.of(description.dot, description.vector_lanes, description.functions)
    program = IntegerProgram(quantized.module, quantized.parameters)
    phases = phases_of(TargetKind.of(description))
    lowered = lower_to_kernels(program, layout, shapes, phases=phases)
    module = lowered.program.module
    found: dict[str, KernelTask] = {}
    for function in module.functions.values():
        if not isinstance(function, relax.Function):
            continue
        for var in called_kernels(function):
            kernel = module[var]
            space = tile_space(kernel, description)
            if len(space) < 2:
                continue
            key = workload_key(kernel)
            if key in found:
                found[key] = replace(found[key], calls=found[key].calls + 1)
                continue
            found[key] = KernelTask(
                key,
                str(kernel.attrs["ibert.kernel"]),
                str(kernel.attrs["ibert.layer"]),
                var.name_hint,
                1,
                int(kernel.attrs.get("ibert.macs", 0)),
                kernel,
                tuple(space),
                lowered,
                layout,
            )
    return sorted(found.values(), key=lambda task: -task.calls * task.macs)


class _Data:
    """Inputs of one kernel and what it gives, by the specification."""

    def __init__(self, task: KernelTask) -> None:
        from ibert_tvm.relay_passes.emit.group import packed_operands

        self.task = task
        self.fused = task.lowered.fused
        self.function: relax.Function = self.fused.module[task.name]
        self.packed = {var.name for var in packed_operands(self.function)}
        self.random = np.random.default_rng(0)
        self.masks, self.starts = self._special()

    def make(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Inputs and results, stored as kernels store them."""
        from ibert_tvm.relay_passes.emit.group import storage_shape
        from ibert_tvm.relay_passes.integer.evaluate import evaluate

        arrays = {var.name: self._array(var) for var in self.function.params}
        results = evaluate(self.fused.module, {}, arrays, self.task.name)
        inputs = [
            self.task.layout.pack(arrays[var.name])
            if var.name in self.packed
            else arrays[var.name].reshape(storage_shape(arrays[var.name].shape))
            for var in self.function.params
        ]
        if "ibert.row_count" in self.task.function.attrs:
            place = int(self.task.function.attrs["ibert.row_count"])
            inputs.insert(place, self._whole_rows(self.task.function.params[place]))
        return (
            [np.ascontiguousarray(array) for array in inputs],
            [np.ascontiguousarray(r.reshape(storage_shape(r.shape))) for r in results],
        )

    def _special(self) -> tuple[set[str], set[str]]:
        """Names of parameters that are masks, and first rows of packed sequences."""
        from ibert_tvm.relay_passes.dialect.calls import operands_of
        from ibert_tvm.relay_passes.integer.relax_ops import is_integer_op, operator_of
        from ibert_tvm.relay_passes.passes.program import bindings

        masks, starts = set(), set()
        for binding in bindings(self.function):
            if not is_integer_op(binding.value):
                continue
            found = operands_of(binding.value)
            is_mask = {o.name for o in operator_of(binding.value).OPERANDS if o.is_mask}
            masks |= {var.name for name, var in found.items() if name in is_mask}
            starts |= {var.name for name, var in found.items() if name == "starts"}
        return masks, starts

    def _array(self, var: relax.Var) -> np.ndarray:
        parameters: Mapping[str, np.ndarray] = self.fused.parameters
        if var.name in parameters:
            return parameters[var.name]
        shape = tuple(int(extent) for extent in var.ty.shape.values)
        dtype = np.dtype(str(var.ty.dtype))
        if var.name in self.masks:
            return np.ones(shape, dtype)
        if var.name in self.starts:
            return self._whole_rows(var)
        limits = np.iinfo(dtype)
        low, high = self.task.lowered.bounds.get(var.name, (limits.min, limits.max))
        return self.random.integers(low, high, shape, endpoint=True).astype(dtype)

    def _whole_rows(self, var: Any) -> np.ndarray:
        """First rows of sequences none of which is padded."""
        shape = var.shape if hasattr(var, "shape") else var.ty.shape.values
        count = int(shape[0])
        rows = int(self.function.ret_ty.shape.values[1])
        return (np.arange(count) * rows).astype("int32")
