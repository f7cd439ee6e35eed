"""Operators that only this file knows go through every phase: nothing of the product names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.dialect.calls import builder
from ibert_tvm.relay_passes.dialect.record import Operand
from ibert_tvm.relay_passes.integer import OPERATORS
from ibert_tvm.relay_passes.integer.checks import check_attribute
from ibert_tvm.relay_passes.integer.domain import Domain, Entry, Index, Tensor
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.operator import Elementwise, Operator, Traits
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.types import NARROW, TensorType
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.spec.values import clamp, floor_divide, maximum
from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.targets import get_target
from tests.arm import bare_kernels
from tests.arm.row_program import RowKernel, RowProgram
from tests.arm.tools import needs
from tests.cuda.stand_in_gpu import run_kernel
from tests.examples import examples
from tests.lowering import lowered
from tests.passes.execution import Compiled, inputs_of
from tests.passes.small import kernels, small_program
from tests.twins import runnable_target

CHANNELS = 8


class ToyLeakyRelu(Elementwise):
    """``max(x, x >> shift)``."""

    shift: int

    OPERANDS = (Operand("x", NARROW, "... C"),)
    RESULT = "... C"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "toy_leaky"

    def __post_init__(self) -> None:
        check_attribute(self, "shift", 1, 15)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """int32."""
        return "int32"

    def entry(self, x: Entry) -> Entry:
        """See the class."""
        return maximum(x, x >> self.shift)


class ToyCentre(Operator):
    """``x - mean``, clamped: a statistic of each row."""

    OPERANDS = (Operand("x", NARROW, "... C"),)
    RESULT = "... C"
    TRAITS = Traits(per_token=True, row_statistics=True)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """int16."""
        return "int16"

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """See the class."""
        x = operands["x"]
        rows, channels = x.shape
        total = domain.sum("toy_total", (rows,), channels, lambda row, k: x[row, k])
        mean = domain.define(
            "toy_mean", (rows,), lambda row: floor_divide(total[row], channels), "int32"
        )

        def entry(row: Index, channel: Index) -> Entry:
            return clamp(x[row, channel] - mean[row], -(2**15), 2**15 - 1)

        return domain.define("toy_centred", (rows, channels), entry, "int16")


leaky, centre = builder(ToyLeakyRelu), builder(ToyCentre)
# Known by being defined; other tests count the operators of the product.
TOYS = {record.OP: OPERATORS.pop(record.OP) for record in (ToyLeakyRelu, ToyCentre)}


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, record in TOYS.items():
        monkeypatch.setitem(OPERATORS, name, record)


def program() -> IntegerProgram:
    """Embedding, the two toys, a matrix product behind them, masked."""

    def body(p: Any, inputs: Mapping[str, relax.Var]) -> list[relax.Var]:
        x = p.words(inputs["input_ids"], CHANNELS, 8)
        x = p.emit(leaky(x, name="leaky", shift=3))
        x = p.emit(centre(x, name="centred"))
        m = p.integers("m", 2**7, 2**8, (1,), "int32")
        x = p.emit(
            integer.requantise(x, m, name="small", shift=14, low=-127, high=127, dtype="int8")
        )
        w = p.integers("w", -127, 127, (CHANNELS, CHANNELS), "int8")
        b = p.integers("b", -999, 999, (CHANNELS,), "int32")
        y = p.emit(leaky(p.emit(integer.linear(x, w, b, name="product")), name="act", shift=2))
        return [p.emit(integer.mask_tokens(y, inputs["attention_mask"], name="out"))]

    return small_program(body)


def by_hand(p: IntegerProgram, ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The program in NumPy, without the product."""
    c = {name: array.astype(np.int64) for name, array in p.parameters.items()}
    x = (c["word.weight"][ids] * c["word.multiplier"] + (1 << 7)) >> 8
    x = np.maximum(x, x >> 3)
    x = np.clip(x - x.sum(-1, keepdims=True) // CHANNELS, -(2**15), 2**15 - 1)
    x = np.clip((x * c["m"] + (1 << 13)) >> 14, -127, 127)
    y = x @ c["w"].T + c["b"]
    return np.where(mask[..., None] != 0, np.maximum(y, y >> 2), 0)


def test_evaluation_intervals_and_unbounded_integers_agree() -> None:
    p = program()
    ids, mask = inputs_of(3, 5, 50, 0)
    inputs = {"input_ids": ids, "attention_mask": mask}
    (out,) = evaluate(p.module, inputs, p.parameters)
    np.testing.assert_array_equal(out, by_hand(p, ids, mask))
    report = analyse_ranges(p.module, p.parameters, max_seq_len=8)
    assert "toy_mean" in report.details["centred"].stages
    assert check_unbounded(p.module, inputs, p.parameters, report.details) == []


def test_the_toys_join_kernels_by_their_traits() -> None:
    p = program()
    fused = kernels(lowered(p, "x86-64-v3", [(3, 5)]).fused.module)
    assert [name for _, name in fused["product"]][-1] == "act"  # in the product's epilogue
    assert fused["word"][-1] == ("toy_leaky_relu", "leaky")


@pytest.mark.parametrize(
    "target", examples(["x86-avx512-vnni", "x86-64-v3", "x86-64"], "x86-avx512-vnni")
)
def test_compiled_toys_equal_the_specification(target: str) -> None:
    runnable_target(target)
    p = program()
    compiled = Compiled(p, target, [(3, 5), (1, 4)])
    for shape in ((3, 5), (1, 4)):
        ids, mask = inputs_of(*shape, 50, 1)
        np.testing.assert_array_equal(compiled(ids, mask)[0], by_hand(p, ids, mask))


def toy_kernel(target: str) -> RowKernel:
    """Both toys in one kernel: the row operation, and the other behind it."""

    def body(p: RowProgram) -> list[relax.Var]:
        centred = p.emit(centre(p.rows_of("x", (-5000, 5000)), name="centred"))
        return [p.emit(leaky(centred, name="leaky", shift=2))]

    return RowProgram("toys", "toy_centre", 6, 24, 0).finish(get_target(target), body, 6 * 24)


@pytest.mark.qemu
@pytest.mark.representatives(1)
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
def test_toys_on_microcontrollers(target: str) -> None:
    needs("arm-none-eabi-gcc", "qemu-system-arm")
    kernel = toy_kernel(target)
    outputs, counts = bare_kernels.run(kernel, get_target(target))
    np.testing.assert_array_equal(outputs[0], kernel.outputs[0])
    assert counts.floating_point == 0


@pytest.mark.parametrize("target", ["t4", "a100"])
@pytest.mark.slow
def test_toys_on_a_gpu(target: str) -> None:
    kernel = toy_kernel(target)
    scheduled = schedule_kernel("toys", kernel.func, get_target(target))
    arguments = [*kernel.inputs, np.full_like(kernel.outputs[0], 77)]
    results = run_kernel(scheduled, arguments, target)
    np.testing.assert_array_equal(results[-1], kernel.outputs[0])
