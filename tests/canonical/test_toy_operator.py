"""A canonical operator that only this test knows: from its record to calibrated integers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from ibert_tvm.quantization.observers import Statistics
from ibert_tvm.quantization.options import CalibrationOptions
from ibert_tvm.quantization.table import TableBuilder
from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.canonical import (
    OPERATORS,
    CanonicalOperator,
    FloatModel,
    build,
    check_canonical,
)
from ibert_tvm.relay_passes.dialect.calls import builder
from ibert_tvm.relay_passes.dialect.record import RECORDS, Operand
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.lower import lower_to_integer, requirements
from ibert_tvm.relay_passes.lower import rule as rules
from ibert_tvm.relay_passes.lower.value import IntegerValue

CHANNELS, WORDS = 6, 11


@pytest.fixture(scope="module", autouse=True)
def toy() -> Iterator[type[CanonicalOperator]]:
    """Record and rule of ``max(x, 0) / 2``, gone again after the tests of this file."""

    class ToyHalfRelu(CanonicalOperator):
        """``max(x, 0) / divisor``.

        Parameters
        ----------
        divisor : float
            Positive.
        """

        divisor: float

        OPERANDS = (Operand("x", ("float32",), "... C"),)
        RESULT = "... C"

        def evaluate(self, x: np.ndarray) -> np.ndarray:
            return np.maximum(x, np.float32(0)) / np.float32(self.divisor)

    @rules.lowers(
        ToyHalfRelu, need=rules.Need(operands=(rules.STREAM,), plain=True, one_sided=True)
    )
    def half_relu(node: rules.Node[ToyHalfRelu]) -> IntegerValue:
        """The same integers as of a relu, in smaller steps."""
        source = node.x.stream()
        out = node.context.emit(integer.relu(source.var, name=node.name))
        return node.result(out, source.scale / node.operator.divisor, source.magnitude)

    yield ToyHalfRelu
    del OPERATORS[ToyHalfRelu.OP], RECORDS[ToyHalfRelu.OP]
    for known in rules._RULES.values():
        known.pop(ToyHalfRelu.OP, None)


def toy_module(toy: type[CanonicalOperator]) -> tvm.IRModule:
    """Embedding, toy, linear: inputs of any shape."""
    shape = [tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")]
    ids = relax.Var("input_ids", relax.TensorType(shape, "int64"))
    extents = {"table": [WORDS, CHANNELS], "weight": [4, CHANNELS], "bias": [4]}
    table, weight, bias = (
        relax.Var(name, relax.TensorType(extent, "float32")) for name, extent in extents.items()
    )
    b = relax.BlockBuilder()
    with b.function("main", [ids, table, weight, bias], attrs={"num_input": 1}):
        with b.dataflow():
            x = b.emit(build.embedding(table, ids, name="words"))
            x = b.emit(builder(toy)(x, name="half", divisor=2))
            out = b.emit_output(b.emit(build.linear(x, weight, bias, name="out")))
        b.emit_func_output(out)
    return b.get()


def test_a_record_and_a_rule_are_all_that_an_operator_needs(toy) -> None:
    module = toy_module(toy)
    check_canonical(module)
    rng = np.random.default_rng(0)
    parameters = {
        "table": rng.normal(size=(WORDS, CHANNELS)).astype(np.float32),
        "weight": rng.normal(size=(4, CHANNELS)).astype(np.float32),
        "bias": rng.normal(size=4).astype(np.float32),
    }
    inputs = {"input_ids": rng.integers(0, WORDS, (3, 40))}
    result = FloatModel(module, parameters, "all").run(inputs)
    expected = np.maximum(result.values["words"], 0) / 2
    np.testing.assert_array_equal(result.values["half"], expected)

    needed = requirements(module, "accurate")
    assert needed["half"].matmul
    statistics = {name: Statistics() for name in needed}
    for name, entry in statistics.items():
        rows = result.values[name].reshape(-1, result.values[name].shape[-1])
        entry.update(rows, rows)
    calibration = TableBuilder(needed, parameters, "accurate", CalibrationOptions())
    table, _ = calibration.build(statistics, lambda: None)
    assert (table.matmul["half"].low, table.matmul["half"].high) == (0, 255)  # one_sided
    lowered = lower_to_integer(module, parameters, table)
    (out,) = evaluate(lowered.module, inputs, lowered.parameters)
    got = out * lowered.scales["outputs"][0]["scale"]
    error = np.abs(got - result.outputs[0]).max()
    assert error < 0.02 * np.abs(result.outputs[0]).max()


def test_an_operator_has_one_rule_of_a_preset(toy, messages) -> None:
    with messages.raises(TypeError):
        rules.lowers(toy, need=rules.PLAIN)(lambda node: node.x)
    rules.lowers(toy, need=rules.PLAIN, preset="toy")(lambda node: node.x)
    assert rules.rules_of("toy")[toy.OP] is not rules.rules_of("accurate")[toy.OP]


def test_an_incomplete_record_is_refused_when_it_is_defined(messages) -> None:
    with messages.raises(TypeError):

        class Lacking(CanonicalOperator):
            OPERANDS = (Operand("x", ("float32",), "... C"),)
            RESULT = "... D"

    assert "canonical.lacking" not in RECORDS
