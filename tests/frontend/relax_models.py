"""Small hand-made Relax functions, as an importer would leave them, at the probe shape 2 x 13."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.relax import op

from ibert_tvm.frontend.canonicalise import Canonical, canonicalise

BATCH, LENGTH, HEADS, WIDTH = 2, 13, 4, 8
CHANNELS = HEADS * WIDTH
VOCABULARY = 17


class Source:
    """A Relax function under construction: inputs, weights by source name, emitted values."""

    def __init__(self, inputs: tuple[str, ...] = ("input_ids", "attention_mask")) -> None:
        self.builder = relax.BlockBuilder()
        self.inputs = {
            name: relax.Var(name, relax.TensorType([BATCH, LENGTH], "int64")) for name in inputs
        }
        self.weights: dict[str, relax.Var] = {}
        self.arrays: dict[str, NDArray[Any]] = {}
        self._random = np.random.default_rng(0)

    @property
    def ids(self) -> relax.Var:
        return self.inputs["input_ids"]

    @property
    def mask(self) -> relax.Var:
        return self.inputs["attention_mask"]

    def emit(self, expr: relax.Expr) -> relax.Var:
        return self.builder.emit(expr)

    def weight(self, name: str, *shape: int) -> relax.Var:
        if name not in self.weights:
            variable = name.replace(".", "_")
            self.weights[name] = relax.Var(variable, relax.TensorType(list(shape), "float32"))
            self.arrays[variable] = self._random.normal(size=shape).astype(np.float32) / 4
        return self.weights[name]

    def words(self, name: str = "words") -> relax.Var:
        table = self.weight(f"{name}.weight", VOCABULARY, CHANNELS)
        return self.emit(op.take(table, self.ids, axis=0))

    def linear(self, x: relax.Expr, name: str, outputs: int = CHANNELS) -> relax.Var:
        columns = int(x.ty.shape.values[-1])
        weight = self.emit(op.permute_dims(self.weight(f"{name}.weight", outputs, columns)))
        return self.emit(
            op.add(self.emit(op.matmul(x, weight)), self.weight(f"{name}.bias", outputs))
        )

    def heads(self, x: relax.Expr) -> relax.Var:
        split = self.emit(op.reshape(x, [BATCH, LENGTH, HEADS, WIDTH]))
        return self.emit(op.permute_dims(split, [0, 2, 1, 3]))

    def scores(self, x: relax.Expr) -> relax.Var:
        q, k = self.heads(self.linear(x, "self.query")), self.heads(self.linear(x, "self.key"))
        transposed = self.emit(op.permute_dims(k, [0, 1, 3, 2]))
        product = self.emit(op.matmul(q, transposed))
        return self.emit(op.multiply(product, relax.const(0.25, "float32")))

    def context(self, weights: relax.Expr, x: relax.Expr) -> relax.Var:
        v = self.heads(self.linear(x, "self.value"))
        joined = self.emit(op.permute_dims(self.emit(op.matmul(weights, v)), [0, 2, 1, 3]))
        return self.emit(op.reshape(joined, [BATCH, LENGTH, CHANNELS]))


def module_of(
    body: Callable[[Source], Any], inputs: tuple[str, ...] = ("input_ids", "attention_mask")
) -> tuple[tvm.IRModule, Source]:
    """Build the module whose body is what `body` emits and returns."""
    source = Source(inputs)
    with source.builder.function("main"):
        with source.builder.dataflow():
            result = body(source)
            results = result if isinstance(result, tuple) else (result,)
            emitted = [source.builder.emit_output(item) for item in results]
        output = emitted[0] if len(emitted) == 1 else relax.Tuple(emitted)
        source.builder.emit_func_output(output, [*source.inputs.values(), *source.weights.values()])
    return source.builder.get(), source


def canonical_of(
    body: Callable[[Source], Any], inputs: tuple[str, ...] = ("input_ids", "attention_mask")
) -> Canonical:
    """Canonicalise what `body` emits."""
    module, source = module_of(body, inputs)
    names = {variable.name: name for name, variable in source.weights.items()}
    return canonicalise(module, source.arrays, inputs=inputs, names=names)


def run_source(
    body: Callable[[Source], Any],
    arrays: dict[str, NDArray[np.int64]],
    inputs: tuple[str, ...] = ("input_ids", "attention_mask"),
) -> list[NDArray[np.float32]]:
    """Outputs of the source function at the probe shape, by stock TVM."""
    module, source = module_of(body, inputs)
    target = tvm.target.Target({"kind": "llvm", "opt-level": 0})
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        machine = relax.VirtualMachine(tvm.compile(module, target=target), tvm.cpu())
    params = module["main"].params
    result = machine["main"](
        *(tvm.runtime.tensor(arrays.get(v.name, source.arrays.get(v.name))) for v in params)
    )
    tensors = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [tensor.numpy() for tensor in tensors]


def padded_batch() -> dict[str, NDArray[np.int64]]:
    random = np.random.default_rng(5)
    mask = np.ones((BATCH, LENGTH), np.int64)
    mask[1, 4:] = 0
    return {"input_ids": random.integers(0, VOCABULARY, mask.shape), "attention_mask": mask}
