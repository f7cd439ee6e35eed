"""Programs on torch tensors: every integer is that of the NumPy reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.relay_passes.integer.operators.attention import Attention
from ibert_tvm.relay_passes.integer.program import Program, Step
from ibert_tvm.relay_passes.integer.types import TensorType
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from ibert_tvm.train.integers import IntegerProgram, exact_product
from tests.examples import examples
from tests.golden.models import MODELS, evaluated, inputs, quantized
from tests.snapshots import Messages

SMALL = [name for name, golden in MODELS.items() if not golden.whole]


@pytest.mark.parametrize("name", examples(SMALL, "bert-default"))
def test_every_integer_is_that_of_the_reference(name: str) -> None:
    model = quantized(name)
    _, wanted = evaluated(name)
    given = {key: torch.from_numpy(np.array(array)) for key, array in inputs(name).items()}
    found = IntegerProgram(model.program, model.parameters, torch.device("cpu")).run(given)
    assert found.keys() == wanted.keys()
    for key, values in found.items():
        np.testing.assert_array_equal(values.numpy(), wanted[key], err_msg=key)


def test_attention_reads_the_mask_of_pairs() -> None:
    """No importer makes one, so no golden model has it."""
    batch, length, channels, heads = 2, 5, 8, 2
    random = np.random.default_rng(5)
    arrays = {
        name: random.integers(-127, 128, (batch, length, channels)).astype("int8") for name in "qkv"
    }
    arrays["pair_mask"] = random.integers(0, 2, (batch, length, length)).astype("int8")
    parameters = {"multiplier": np.array([20000], np.int16)}
    types = {
        name: TensorType(array.shape, str(array.dtype))
        for name, array in (arrays | parameters).items()
    }
    exponential = ShortExponential.from_scale(0.0002)
    operator = Attention("a", heads, "short", exponential, shift=7, low=-127, high=127)
    operands = {name: name for name in types}
    steps = (Step(operator, operands, operator.result_type(types)),)
    constant = {"multiplier": types.pop("multiplier")}
    program = Program(types, constant, steps, ("a",))
    _, wanted = evaluate_all(program, arrays, parameters)
    given = {name: torch.from_numpy(array) for name, array in arrays.items()}
    found = IntegerProgram(program, parameters, torch.device("cpu")).run(given)
    np.testing.assert_array_equal(found["a"].numpy(), wanted["a"])
    arrays["pair_mask"] = np.ones_like(arrays["pair_mask"])
    _, unmasked = evaluate_all(program, arrays, parameters)
    assert (unmasked["a"] != wanted["a"]).any()


@pytest.mark.parametrize(
    ("inner", "a", "b"),
    [(8, 127, 127), (1041, 127, 127), (3000, 255, 128), (40, 2**15, 2**20), (5000, 2**15, 127)],
)
def test_products_are_exact_at_their_bounds(inner: int, a: int, b: int) -> None:
    left = torch.full((2, inner), a)
    left[1, ::2] = -a + 1
    right = torch.full((inner, 3), b)
    right[:, 1] -= 1
    wanted = (left.numpy().astype(object) @ right.numpy().astype(object)).astype(np.int64)
    np.testing.assert_array_equal(exact_product(left, right, a, b).numpy(), wanted)


@pytest.mark.slow
def test_mixed_precision_changes_no_integer() -> None:
    model = quantized("bert")
    given = {key: torch.from_numpy(np.array(array)) for key, array in inputs("bert").items()}
    program = IntegerProgram(model.program, model.parameters, torch.device("cpu"))
    wanted = program.run(given)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            found = program.run(given)
    finally:
        torch.set_float32_matmul_precision(before)
    for key, values in wanted.items():
        assert torch.equal(found[key], values), key


def test_a_product_that_no_float_holds_is_refused(messages: Messages) -> None:
    one = torch.ones((1, 1), dtype=torch.int64)
    with messages.raises(RangeError):
        exact_product(one, one, 2**30, 2**30)


def test_an_id_that_is_no_row_is_refused() -> None:
    model = quantized("bert")
    given = {key: torch.from_numpy(np.array(array)) for key, array in inputs("bert").items()}
    rows = model.info.vocab_size
    given["input_ids"][0, 0] = rows
    program = IntegerProgram(model.program, model.parameters, torch.device("cpu"))
    with pytest.raises(RangeError, match=f"the table has {rows} rows"):
        program.run(given)
