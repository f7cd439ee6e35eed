"""Small modules whose value ``x`` is an embedding, lowered, and the operators that they become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.integer import Operator
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.lower import Requirement, lower_to_integer, requirements
from ibert_tvm.relay_passes.lower.driver import LoweredModel
from ibert_tvm.relay_passes.quantization_table import (
    ActivationQuant,
    QuantizationTable,
    WeightQuant,
)
from tests.lower.modules import SUM_HIGH, function, tensor, token_inputs

# Scales are powers of two: factors between them are exact.
SUM = ActivationQuant(2.0**-14, -SUM_HIGH, SUM_HIGH)
SHORT_SUM = ActivationQuant(2.0**-10, -(2**14 - 1), 2**14 - 1)
WORDS = WeightQuant(np.array([[1, -2], [127, 3], [0, 5]], np.int8), np.array([0.5, 0.25, 1.0]))
STREAM = ActivationQuant(2.0**-12, -32767, 32767)
INT8 = ActivationQuant(2.0**-4, -127, 127)
MATRIX = WeightQuant(np.array([[3, -4], [5, 6], [-7, 127]], np.int8), np.array([0.5, 0.25, 0.125]))
BIAS = np.array([1.0, -2.0, 0.3], np.float32)
LINEAR = {"up.weight": np.zeros((3, 2), np.float32), "up.bias": BIAS}
LINEAR_TABLE: dict[str, Any] = {"matmul": {"x": INT8}, "matrices": {"up": MATRIX}}

Emit = Callable[[relax.Expr], relax.Var]
Variables = dict[str, relax.Var]
Body = Callable[[Emit, relax.Var, relax.Var, Variables], Any]
"""Takes how to emit, x, the mask and the weights."""


def made(body: Body, weights: dict[str, np.ndarray]) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """The canonical module and its weights."""
    ids, mask = token_inputs()
    arrays = {"words.weight": np.zeros((3, 2), np.float32), **weights}
    variables = {name: tensor(name, array.shape) for name, array in arrays.items()}

    def whole(emit: Emit) -> Any:
        x = emit(build.embedding(variables["words.weight"], ids, name="x"))
        return body(emit, x, mask, variables)

    return function([ids, mask], list(variables.values()), whole), arrays


def needed(
    body: Body, weights: dict[str, np.ndarray], preset: str = "accurate"
) -> dict[str, Requirement]:
    """What lowering asks for."""
    return requirements(made(body, weights)[0], preset)


def lower(
    body: Body,
    weights: dict[str, np.ndarray] | None = None,
    preset: str = "accurate",
    matmul: dict[str, ActivationQuant] | None = None,
    stream: dict[str, ActivationQuant] | None = None,
    matrices: dict[str, WeightQuant] | None = None,
    grids: dict[str, ActivationQuant] | None = None,
) -> LoweredModel:
    """Lower it with these entries of the table."""
    module, arrays = made(body, weights or {})
    table = QuantizationTable(
        preset,
        matmul or {},
        {"x": SUM, **(stream or {})},
        matrices or {},
        {"x": WORDS},
        grids or {},
    )
    return lower_to_integer(module, arrays, table)


def linear(emit: Emit, x: relax.Var, weights: Variables) -> relax.Var:
    """The matrix product of `LINEAR`."""
    return emit(build.linear(x, weights["up.weight"], weights["up.bias"], name="up"))


def lower_linear(make: Callable[[relax.Var], relax.Call], **table: Any) -> LoweredModel:
    """Lower what is made of the product, with these further entries of the table."""
    return lower(
        lambda emit, x, mask, w: emit(make(linear(emit, x, w))), LINEAR, **LINEAR_TABLE, **table
    )


def records(lowered: LoweredModel) -> dict[str, Operator]:
    """The integer operators by name, in order."""
    return {step.name: step.operator for step in read_program(lowered.module).steps}


def kinds(lowered: LoweredModel, behind: str = "x") -> list[tuple[str, str]]:
    """Kinds of the operators and names of their values, behind one of them."""
    found = [(type(record).__name__, name) for name, record in records(lowered).items()]
    return found[[name for _, name in found].index(behind) + 1 :]


def native_scale(lowered: LoweredModel, name: str) -> Any:
    """Scale, or scales by channel, of the native form of a value."""
    forms = {form["form"]: form for form in lowered.scales["values"][name]}
    return forms["native"]["scale"]
