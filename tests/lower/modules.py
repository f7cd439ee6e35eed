"""Small canonical modules and quantisation tables for the tests of lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from ibert_tvm.relay_passes.lower import requirements
from ibert_tvm.relay_passes.quantization_table import (
    ActivationQuant,
    QuantizationTable,
    WeightQuant,
)
from tests.canonical.reference import run

SUM_HIGH = 2**19 - 1


def tensor(name: str, shape: Sequence[Any], dtype: str = "float32") -> relax.Var:
    return relax.Var(name, relax.TensorType(list(shape), dtype))


def function(
    inputs: Sequence[relax.Var],
    weights: Sequence[relax.Var],
    body: Callable[[Callable[[relax.Expr], relax.Var]], Any],
) -> tvm.IRModule:
    """A module whose ``main`` returns what ``body(emit)`` returns (a variable or several)."""
    builder = relax.BlockBuilder()
    with builder.function("main", [*inputs, *weights], attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            results = body(builder.emit)
            many = isinstance(results, (tuple, list))
            emitted = [builder.emit_output(r) for r in (results if many else [results])]
        builder.emit_func_output(relax.Tuple(emitted) if many else emitted[0])
    return builder.get()


def token_inputs() -> tuple[relax.Var, relax.Var]:
    """``input_ids`` and ``attention_mask`` of one symbolic shape."""
    shape = [tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")]
    return tensor("input_ids", shape, "int64"), tensor("attention_mask", shape, "int64")


def rows(weight: NDArray[Any]) -> WeightQuant:
    """Nearest int8 rows."""
    scale = np.maximum(np.abs(weight).max(axis=1), 1e-6) / 127
    return WeightQuant(np.rint(weight / scale[:, None]).astype(np.int8), scale.astype(np.float64))


def table_for(
    module: tvm.IRModule,
    parameters: Mapping[str, NDArray[Any]],
    inputs: Mapping[str, NDArray[Any]],
    preset: str = "accurate",
    sum_high: int = SUM_HIGH,
) -> QuantizationTable:
    """The exact ranges of one run as a table; a quarter of the integers of a sum are headroom."""
    values = run(module, {**inputs, **parameters})
    needed = requirements(module, preset)
    matmul, stream = {}, {}
    for name, value in needed.items():
        top = max(float(np.abs(values[name]).max()), 0.1)
        if value.matmul:
            matmul[name] = ActivationQuant(top / 127, -127, 127)
        if value.stream:
            stream[name] = (
                ActivationQuant(top / (0.75 * sum_high), -sum_high, sum_high)
                if len(value.need.operands) == 2
                else ActivationQuant(top / 32767, -32767, 32767)
            )
    return QuantizationTable(
        preset,
        matmul,
        stream,
        {n: rows(parameters[v.weight]) for n, v in needed.items() if v.section == "weights"},
        {n: rows(parameters[v.weight]) for n, v in needed.items() if v.section == "embeddings"},
    )
