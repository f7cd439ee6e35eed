"""A builder of small integer programs for these tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.passes.models import encoder_program


class Builder:
    """Collects parameters and bindings of a function ``main(input_ids, attention_mask, ...)``."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.batch, self.seq = tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")
        kind = relax.TensorType([self.batch, self.seq], "int64")
        self.ids, self.mask = relax.Var("input_ids", kind), relax.Var("attention_mask", kind)
        self.parameters: dict[str, np.ndarray] = {}
        self.variables: list[relax.Var] = []
        self.block = relax.BlockBuilder()

    def parameter(self, name: str, array: Any, dtype: str) -> relax.Var:
        self.parameters[name] = np.asarray(array, dtype)
        var = relax.Var(name, relax.TensorType(self.parameters[name].shape, dtype))
        self.variables.append(var)
        return var

    def values(self, name: str, bound: int, shape: tuple[int, ...], dtype: str) -> relax.Var:
        return self.parameter(name, self.random.integers(-bound, bound + 1, shape), dtype)

    def emit(self, call: relax.Call) -> relax.Var:
        return self.block.emit(call)

    def module(self, body: Callable[[Builder], Any]) -> tvm.IRModule:
        """Run `body` inside the function; it returns the output or a tuple of outputs."""
        with self.block.function("main", [self.ids, self.mask], attrs={"num_input": 2}):
            with self.block.dataflow():
                result = body(self)
                fields = list(result) if isinstance(result, tuple) else result
                output = self.block.emit_output(
                    relax.Tuple(fields) if isinstance(fields, list) else fields
                )
            self.block.emit_func_output(output)
        built = self.block.get()["main"]
        function = relax.Function(
            [self.ids, self.mask, *self.variables], built.body, built.ret_ty, True, built.attrs
        )
        return relax.transform.Normalize()(tvm.IRModule({"main": function}))


@pytest.fixture
def builder() -> Builder:
    """An empty program."""
    return Builder()


@pytest.fixture(scope="module", params=["accurate", "paper"])
def encoder(request: pytest.FixtureRequest) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """One encoder layer: module and parameters."""
    program = encoder_program(24, 3, 40, request.param, roberta=request.param == "paper", seed=1)
    return program.module, program.parameters
