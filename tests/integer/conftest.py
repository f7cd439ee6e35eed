"""A builder of small integer programs for these tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.passes.models import ProgramBuilder, encoder_program


class Builder(ProgramBuilder):
    """Collects parameters and bindings of a function ``main(input_ids, attention_mask, ...)``."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        kind = relax.TensorType([tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")], "int64")
        self.ids, self.mask = relax.Var("input_ids", kind), relax.Var("attention_mask", kind)

    def parameter(self, name: str, array: Any, dtype: str | None = None) -> relax.Var:
        return super().parameter(name, np.asarray(array, dtype))

    def values(self, name: str, bound: int, shape: tuple[int, ...], dtype: str) -> relax.Var:
        return self.integers(name, -bound, bound, shape, dtype)

    def module(self, body: Callable[[Builder], Any]) -> tvm.IRModule:
        """The module whose output, or tuple of outputs, a function binds."""

        def outputs() -> tuple[relax.Var, ...]:
            result = body(self)
            return result if isinstance(result, tuple) else (result,)

        return self.built([self.ids, self.mask], outputs)


@pytest.fixture
def builder() -> Builder:
    """An empty program."""
    return Builder()


@pytest.fixture(scope="module", params=["accurate", "paper"])
def encoder(request: pytest.FixtureRequest) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """One encoder layer: module and parameters."""
    program = encoder_program(24, 3, 40, request.param, roberta=request.param == "paper", seed=1)
    return program.module, program.parameters
