"""Integer programs of a few operators, for tests that look at structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax, tirx

from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.relax_ops import operator_name
from ibert_tvm.relay_passes.passes import IntegerProgram, TargetKind, phases_of
from ibert_tvm.relay_passes.passes.program import bindings
from tests.passes.models import ProgramBuilder

CHANNELS = 8
UNPACKED = tuple(p for p in phases_of(TargetKind.PROCESSOR) if p.name != "pack_tokens")
"""Phases of a processor that computes padding, too."""
Inputs = Mapping[str, relax.Var]
Body = Callable[[ProgramBuilder, Inputs], Sequence[relax.Var]]


def small_program(body: Body, seed: int = 0, **inputs: str) -> IntegerProgram:
    """Build ``main(input_ids, attention_mask, *inputs, *parameters)``.

    Parameters
    ----------
    body
        Called with the builder and the inputs by name; returns the outputs.
    seed
        Of the random parameters.
    **inputs
        dtype of further inputs [batch, seq_len, CHANNELS].

    Returns
    -------
    IntegerProgram
    """
    p = ProgramBuilder(seed)
    batch, seq_len = tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")
    named = {
        name: relax.Var(name, relax.TensorType([batch, seq_len], "int32"))
        for name in ("input_ids", "attention_mask")
    }
    for name, dtype in inputs.items():
        named[name] = relax.Var(name, relax.TensorType([batch, seq_len, CHANNELS], dtype))
    return IntegerProgram(p.built([*named.values()], lambda: body(p, named)), p.parameters)


def outputs_of(
    program: IntegerProgram, function: str = "main", shape: tuple[int, int] = (2, 3), seed: int = 0
) -> list[np.ndarray]:
    """Evaluate a function by the specification on random inputs; row 1 has one padded token."""
    random = np.random.default_rng(seed)
    mask = np.ones(shape, "int32")
    mask[1:, -1:] = 0
    arrays = {"input_ids": random.integers(0, 50, shape).astype("int32"), "attention_mask": mask}
    for var in program.module[function].params:
        if var.name not in arrays and var.name not in program.parameters:
            bounds = np.iinfo(str(var.ty.dtype))
            size = (*shape, CHANNELS)
            values = random.integers(bounds.min, bounds.max, size, endpoint=True)
            arrays[var.name] = values.astype(bounds.dtype)
    return evaluate(program.module, arrays, program.parameters, function)


def calls(function: relax.Function) -> list[tuple[str, str]]:
    """(operator, canonical name) of every integer operator of a function, in order."""
    return [
        (operator_name(binding.value).removeprefix("integer."), str(binding.value.attrs["name"]))
        for binding in bindings(function)
        if operator_name(binding.value)
    ]


def kernels(module: tvm.IRModule) -> dict[str, list[tuple[str, str]]]:
    """What each fused kernel holds, by the layer it is named after."""
    found = {}
    for function in module.functions.values():
        if isinstance(function, relax.Function) and "Primitive" in function.attrs:
            layer = str(function.attrs["ibert.layer"])
            assert layer not in found, "two kernels of one layer"
            found[layer] = calls(function)
    return found
