"""Linear layers with every epilogue that emission fuses, and what the specification says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.emit.group import GroupEmitter
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.spec import nibbles
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.exponential import BinaryExponential
from ibert_tvm.relay_passes.spec.gelu import GELU, PaperGelu
from ibert_tvm.relay_passes.spec.released.rounding import exact_factors
from ibert_tvm.targets import TargetDescription
from tests.lowering import layout_of
from tests.passes.models import ProgramBuilder

_HALF_STREAM = {"low": 1 - 2**14, "high": 2**14 - 1}


@dataclass(frozen=True)
class LinearCase:
    """One linear layer to test.

    Attributes
    ----------
    epilogue
        Name in `EPILOGUES`.
    rows, depth, columns
        Sizes of the product.
    seed
        Of the numbers.
    halves
        Whether the weight is in half bytes.
    """

    epilogue: str = "plain"
    rows: int = 32
    depth: int = 64
    columns: int = 48
    seed: int = 0
    halves: bool = False

    @property
    def spread(self) -> float:
        """What makes 8 bits of most sums: they exceed this now and then."""
        return min(100 / (40 * 73 * self.depth**0.5), 2.0**-7)


@dataclass(frozen=True, eq=False)
class LinearKernel:
    """A kernel and what it must answer.

    Attributes
    ----------
    func
        Unscheduled; its buffers are `inputs` and then the results.
    inputs
        Arrays to call it with.
    expected
        Results.
    """

    func: tirx.PrimFunc
    inputs: list[NDArray[np.generic]] = field(repr=False)
    expected: list[NDArray[np.generic]] = field(repr=False)

    @property
    def arguments(self) -> list[NDArray[np.generic]]:
        """Inputs, and arrays for the results that have none of their numbers."""
        return [*self.inputs, *(np.full_like(array, 77) for array in self.expected)]

    def check(self, answers: list[NDArray[np.generic]]) -> None:
        """Compare all parameters after a run with what they must be: inputs stay as they were."""
        for index, (answer, array) in enumerate(
            zip(answers, [*self.inputs, *self.expected], strict=True)
        ):
            np.testing.assert_array_equal(answer, array, err_msg=f"parameter {index}")


Epilogue = Callable[[ProgramBuilder, relax.Var, dict[str, relax.Var], LinearCase], list[relax.Var]]


def _short(p, sums, _inputs, case) -> list[relax.Var]:
    return [p.requantise_short("y", sums, case.spread, channels=case.columns)]


def _unsigned(p, sums, _inputs, case) -> list[relax.Var]:
    return [p.requantise_short("y", sums, case.spread, 0, 255, "uint8", 128, case.columns)]


def _wide(p, sums, _inputs, case) -> list[relax.Var]:
    return [p.requantise("y", sums, case.spread, channels=case.columns)]


def _to_even(p, sums, case, name, gain, low, high, dtype) -> relax.Var:
    reals = p.random.uniform(gain / 2, gain, case.columns) * p.random.choice([-1, 1], case.columns)
    factors = exact_factors(reals, 2**31 - 1)
    return p.emit(
        integer.requantise_even(
            sums,
            p.parameter(f"{name}.multiplier", factors.multipliers),
            p.parameter(f"{name}.shift", factors.shifts),
            name=name,
            split=factors.split,
            low=low,
            high=high,
            dtype=dtype,
        )
    )


def _released(p, sums, _inputs, case) -> list[relax.Var]:
    return [_to_even(p, sums, case, "y", case.spread, -127, 127, "int8")]


def _released_residual(p, sums, inputs, case) -> list[relax.Var]:
    term = _to_even(p, sums, case, "term", 0.7, -(2**21), 2**21 - 1, "int32")
    return [p.emit(integer.add(term, inputs["wide"], name="sum"))]


def _gelu(p, sums, _inputs, case) -> list[relax.Var]:
    x = p.requantise_short("s", sums, 2.0**-7, **_HALF_STREAM, dtype="int16", channels=case.columns)
    y = p.emit(
        integer.gelu(
            x, ClippedPolynomial.from_scale(clipped_scale(GELU.limit, 9.0), GELU), name="gelu"
        )
    )
    return [p.requantise_short("y", y, 0.02, 0, 255, "uint8", 20, case.columns)]


def _paper_gelu(p, sums, _inputs, case) -> list[relax.Var]:
    constants = PaperGelu.from_scales(p.random.uniform(1e-4, 1e-3, case.columns))
    arrays = [
        p.parameter(f"gelu.{name}", getattr(constants, name))
        for name in ("q_b", "q_c", "q_1", "erf_shift")
    ]
    y = p.emit(integer.gelu_paper(sums, *arrays, name="gelu"))
    return [p.requantise("y", y, 1e-6, channels=case.columns)]


def _relu(p, sums, _inputs, case) -> list[relax.Var]:
    active = p.emit(integer.relu(sums, name="relu"))
    return [p.requantise_short("y", active, case.spread, channels=case.columns)]


def _residual(p, sums, inputs, case) -> list[relax.Var]:
    x = p.requantise_short("s", sums, 2.0**-7, **_HALF_STREAM, dtype="int16", channels=case.columns)
    other = p.requantise_short("other", inputs["stream"], 0.6, **_HALF_STREAM, dtype="int16")
    return [p.emit(integer.add_short(x, other, name="sum", **_HALF_STREAM))]


def _wide_residual(p, sums, inputs, case) -> list[relax.Var]:
    x = p.requantise("s", sums, 0.5, -(2**19), 2**19, "int32", channels=case.columns)
    other = p.requantise("other", inputs["stream"], 0.9, -(2**19), 2**19, "int32")
    return [p.emit(integer.add(x, other, name="sum"))]


def _several(p, sums, inputs, case) -> list[relax.Var]:
    """Results of all widths: a sum of 16 bits, its 8-bit form, and the sums of the product."""
    (total,) = _residual(p, sums, inputs, case)
    return [total, p.requantise_short("y", total, 1 / 90, channels=case.columns), sums]


def _tanh(p, sums, _inputs, _case) -> list[relax.Var]:
    x = p.requantise("s", sums, 0.2, -32767, 32767, "int32")
    exponential = BinaryExponential.for_tanh(1e-3)
    return [p.emit(integer.tanh(x, exponential, name="tanh", fraction_bits=15))]


def _positions(p, sums, _inputs, case) -> list[relax.Var]:
    table = p.integers("table", -(2**19), 2**19, (case.rows, case.columns), "int32")
    x = p.requantise("s", sums, 0.5, -(2**19), 2**19, "int32", channels=case.columns)
    return [p.emit(integer.add_positions(x, table, name="sum"))]


EPILOGUES: dict[str, Epilogue] = {
    "plain": lambda _p, sums, _inputs, _case: [sums],
    "short": _short,
    "unsigned": _unsigned,
    "wide": _wide,
    "released": _released,
    "released residual": _released_residual,
    "gelu": _gelu,
    "paper gelu": _paper_gelu,
    "relu": _relu,
    "residual": _residual,
    "wide residual": _wide_residual,
    "several": _several,
    "tanh": _tanh,
    "positions": _positions,
}


@dataclass(frozen=True, eq=False)
class _Program:
    """A fused function with its inputs and parameters."""

    module: tvm.IRModule
    arrays: dict[str, NDArray[np.generic]]
    parameters: dict[str, NDArray[np.generic]]
    bounds: dict[str, tuple[int, int]]


def _program(case: LinearCase) -> _Program:
    p = ProgramBuilder(case.seed)
    tokens = (1, case.rows)
    arrays: dict[str, NDArray[np.generic]] = {
        "x": p.random.integers(-128, 128, (*tokens, case.depth)).astype("int8"),
        "stream": p.random.integers(-(2**15), 2**15, (*tokens, case.columns)).astype("int16"),
        "wide": p.random.integers(-(2**21), 2**21, (*tokens, case.columns)).astype("int32"),
    }
    # Sums as large as they can be, in the first and the last row.
    arrays["x"][:, 0], arrays["x"][:, -1] = -128, 127
    bounds = {
        name: (int(np.iinfo(array.dtype).min), int(np.iinfo(array.dtype).max))
        for name, array in arrays.items()
    }
    bounds["wide"] = (-(2**21), 2**21 - 1)
    inputs = {
        name: relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
        for name, array in arrays.items()
    }
    with p.builder.function("main", list(inputs.values())):
        with p.builder.dataflow():
            if case.halves:
                sums = _of_half_bytes(p, inputs["x"], case)
            else:
                sums = p.linear("linear", inputs["x"], case.columns)
                p.parameters["linear.weight"][-1] = 127
            results = [
                p.builder.emit_output(value)
                for value in EPILOGUES[case.epilogue](p, sums, inputs, case)
            ]
        p.builder.emit_func_output(results if len(results) > 1 else results[0])
    built = p.builder.get()["main"]
    read = _read(built)
    leading = [var for name, var in inputs.items() if name in read]
    attrs = {"num_input": len(leading), "ibert.kernel": "linear", "ibert.layer": case.epilogue}
    function = relax.Function([*leading, *p.vars], built.body, built.ret_ty).with_attrs(attrs)
    module = relax.transform.Normalize()(tvm.IRModule({"main": function}))
    return _Program(module, {var.name: arrays[var.name] for var in leading}, p.parameters, bounds)


def _of_half_bytes(p: ProgramBuilder, x: relax.Var, case: LinearCase) -> relax.Var:
    """Of all half bytes and scales; the first and the last column have the largest there are."""
    groups = -(-case.depth // nibbles.GROUP)
    entries = p.random.integers(-8, 8, (case.columns, groups, nibbles.GROUP)).astype("int8")
    scales = p.random.integers(1, 17, (case.columns, groups))
    entries[0], entries[-1], scales[0], scales[-1] = -8, 7, 16, 16
    arrays = zip(("linear.weight", "linear.scales"), nibbles.pack(entries, scales), strict=True)
    weight, scale = (p.parameter(name, array) for name, array in arrays)
    bias = p.integers("linear.bias", -4000, 4000, (case.columns,), "int32")
    return p.emit(integer.nibble_linear(x, weight, scale, bias, name="linear"))


def _emitted(target: TargetDescription, case: LinearCase, program: _Program) -> tirx.PrimFunc:
    layout = layout_of(target)
    emitter = GroupEmitter(layout, program.parameters, program.bounds, 1)
    return emitter.emit(program.module["main"])


def linear_function(target: TargetDescription, case: LinearCase) -> tirx.PrimFunc:
    """Emit a kernel for a target as the compiler does, unscheduled."""
    return _emitted(target, case, _program(case))


def linear_kernel(target: TargetDescription, case: LinearCase) -> LinearKernel:
    """The same, and what the specification says of it."""
    program = _program(case)
    expected = evaluate(program.module, program.arrays, program.parameters)
    layout = layout_of(target)
    packed = {"linear.weight": "entries", "linear.scales": "columns"}
    parameters = [
        layout.pack(array, packed[name]) if name in packed else array
        for name, array in program.parameters.items()
    ]
    return LinearKernel(
        _emitted(target, case, program),
        [_stored(array) for array in (*program.arrays.values(), *parameters)],
        [_stored(array) for array in expected],
    )


def _read(function: relax.Function) -> set[str]:
    names: set[str] = set()
    for block in function.body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.Call):
                names |= {arg.name for arg in binding.value.args if isinstance(arg, relax.Var)}
    return names


def _stored(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """As kernels pass values on: tokens of all sequences are one axis."""
    return np.ascontiguousarray(array.reshape(-1, array.shape[-1]) if array.ndim == 3 else array)
