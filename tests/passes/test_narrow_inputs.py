"""NarrowInputs: ids and masks of 64 bits become such of 32, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.passes.narrow_inputs import NarrowInputs
from ibert_tvm.relay_passes.passes.program import bindings
from tests.passes.models import ProgramBuilder
from tests.passes.small import calls


def program(dtype: str, outputs: int = 2) -> IntegerProgram:
    """Embeddings of ids and positions, and their masked mean."""
    p = ProgramBuilder(0)
    sizes = [tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")]
    ids = relax.Var("input_ids", relax.TensorType(sizes, dtype))
    mask = relax.Var("attention_mask", relax.TensorType(sizes, dtype))

    def body() -> list[relax.Var]:
        places = p.emit(
            integer.position_ids(ids, name="places", kind="roberta", offset=0, padding_index=1)
        )
        values = []
        for name, index in (("word", ids), ("place", places)):
            table = p.integers(f"{name}.table", -127, 127, (50, 8), "int8")
            factor = p.integers(f"{name}.multiplier", 2**20, 2**24, (50,), "int32")
            values.append(p.emit(integer.embedding(index, table, factor, name=name, shift=16)))
        small = p.requantise("small", p.emit(integer.add(*values, name="sum")), 1e-3)
        return [p.emit(integer.mean_pool(small, mask, name="mean", fraction_bits=8)), small]

    return IntegerProgram(p.built([ids, mask], lambda: body()[:outputs]), p.parameters)


@pytest.mark.parametrize("outputs", [1, 2])
def test_inputs_become_narrow_and_results_stay(outputs: int) -> None:
    before = program("int64", outputs)
    after = NarrowInputs()(before)
    main = after.module["main"]
    assert [str(var.ty.dtype) for var in main.params[:2]] == ["int32", "int32"]
    assert [var.name for var in main.params] == [v.name for v in before.module["main"].params]
    kinds = [str(binding.var.ty.dtype) for binding in bindings(main)[:4]]
    assert kinds == ["int32"] * 4
    assert calls(main) == calls(before.module["main"])
    random = np.random.default_rng(1)
    ids = random.integers(0, 50, (2, 5))
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    wide = {"input_ids": ids, "attention_mask": mask}
    narrow = {name: array.astype("int32") for name, array in wide.items()}
    for one, other in zip(
        evaluate(before.module, wide, before.parameters),
        evaluate(after.module, narrow, after.parameters),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_narrow_inputs_are_left_alone() -> None:
    narrow = program("int32")
    assert NarrowInputs()(narrow) is narrow
    once = NarrowInputs()(program("int64"))
    assert NarrowInputs()(once) is once
