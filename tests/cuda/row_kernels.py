"""Kernels of whole programs that are no matrix products, with inputs and what they must answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tvm import relax, tirx

from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.emit.group import storage_shape
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.relax_ops import operator_name
from ibert_tvm.relay_passes.passes import (
    IntegerProgram,
    TargetKind,
    lower_to_kernels,
    phases_of,
)
from ibert_tvm.relay_passes.passes.pipeline import Lowered
from ibert_tvm.relay_passes.passes.program import bindings
from ibert_tvm.targets import TargetDescription
from tests.passes.small import UNPACKED

MATRIX_KERNELS = ("linear", "attention")


@dataclass(frozen=True, eq=False)
class ProgramKernel:
    """One kernel of a program.

    Attributes
    ----------
    name, kind
        Of the function, and what emission says that it is.
    func
        Unscheduled; its buffers are `inputs` and then `outputs`.
    inputs, outputs
        Arrays to call it with, and what the specification answers.
    """

    name: str
    kind: str
    func: tirx.PrimFunc
    inputs: list[NDArray[np.integer]]
    outputs: list[NDArray[np.integer]]


def program_kernels(
    program: IntegerProgram,
    target: TargetDescription,
    shape: tuple[int, int],
    seed: int = 0,
    into_norms: bool = False,
) -> list[ProgramKernel]:
    """Lower a program for a GPU, and make inputs for its kernels.

    Parameters
    ----------
    program
        Integer program.
    target
        With a GPU.
    shape
        Batch and sequence length.
    seed
        Of the inputs.
    into_norms
        Whether LayerNorm's kernels take in what only they read, as the compiler has it on GPUs.

    Returns
    -------
    list of ProgramKernel
        Without matrix products.
    """
    layout = KernelLayout.of(target.dot, target.vector_lanes, target.functions)
    phases = phases_of(TargetKind.GPU) if into_norms else UNPACKED
    lowered = lower_to_kernels(program, layout, [shape], phases=phases)
    kernels = []
    for var, func in lowered.program.module.functions_items():
        kind = str(func.attrs["ibert.kernel"]) if "ibert.kernel" in (func.attrs or {}) else ""
        if isinstance(func, tirx.PrimFunc) and kind not in MATRIX_KERNELS:
            inputs, outputs = _example(lowered, var.name_hint, np.random.default_rng(seed))
            kernels.append(ProgramKernel(var.name_hint, kind, func, inputs, outputs))
    return kernels


def _example(
    lowered: Lowered, name: str, random: np.random.Generator
) -> tuple[list[NDArray[np.integer]], list[NDArray[np.integer]]]:
    """Inputs of a kernel and its results, as kernels store them."""
    function = lowered.fused.module[name]
    tables = _looked_up(function)
    arrays = {}
    for var in function.params:
        if var.name in lowered.fused.parameters:
            arrays[var.name] = lowered.fused.parameters[var.name]
            continue
        shape = tuple(int(size) for size in var.ty.shape.values)
        dtype = np.dtype(str(var.ty.dtype))
        low, high = lowered.bounds.get(var.name, (0, 1))
        if var.name in tables:
            low, high = 0, tables[var.name] - 1
        arrays[var.name] = random.integers(low, high, shape, endpoint=True).astype(dtype)
    results = evaluate(lowered.fused.module, {}, arrays, name)
    return [_stored(arrays[var.name]) for var in function.params], [_stored(r) for r in results]


def _stored(array: NDArray[np.integer]) -> NDArray[np.integer]:
    return np.ascontiguousarray(array.reshape(storage_shape(array.shape)))


def _looked_up(function: relax.Function) -> dict[str, int]:
    """Rows of the table that an operand of ids counts, by the operand's name."""
    return {
        binding.value.args[0].name: int(binding.value.args[1].ty.shape.values[0])
        for binding in bindings(function)
        if operator_name(binding.value) == "integer.embedding"
    }
