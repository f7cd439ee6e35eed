"""The operators of the released arithmetic: types, refusals, evaluation, intervals."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.errors import LoweringError, RangeError
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.spec.released import ReleasedLayerNorm, exact_factors, layer_norm
from tests.passes.models import ProgramBuilder, module_of
from tests.snapshots import Messages

BATCH, SEQ = tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")
CHANNELS = 8


def var(name: str, shape: list, dtype: str) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


X32 = var("x", [BATCH, SEQ, CHANNELS], "int32")
C32 = var("c", [CHANNELS], "int32")
C64 = var("o", [CHANNELS], "int64")


def even(x=X32, multiplier=C32, shift=C32, **changes):
    settings = {"name": "q", "split": 0, "low": -128, "high": 127, "dtype": "int8", **changes}
    return integer.requantise_even(x, multiplier, shift, **settings)


def norm(x=X32, offset=C64):
    return integer.released_layer_norm(x, offset, ReleasedLayerNorm(0), name="n")


def test_types() -> None:
    block = relax.BlockBuilder()
    with block.function("main", [X32, C32, C64]):
        small = block.emit(even(dtype="int16", low=-300, high=300))
        wide = block.emit(norm())
        block.emit_func_output(relax.Tuple([small, wide]))
    assert (str(small.ty.dtype), str(wide.ty.dtype)) == ("int16", "int64")


REFUSED = {
    "bounds": lambda: even(low=-129),
    "shifts of other channels": lambda: even(shift=var("s", [CHANNELS + 1], "int32")),
    "narrow offset": lambda: norm(offset=C32),
    "wide input": lambda: norm(x=var("x", [BATCH, SEQ, CHANNELS], "int64")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operands_that_are_refused(name: str, messages: Messages) -> None:
    with messages.raises(LoweringError):
        REFUSED[name]()


def program(bound: int):
    """A 22-bit clamp, a layer norm and its requantisation to 8 bits, with their constants."""
    random = np.random.default_rng(0)
    gamma, beta = random.normal(1.0, 0.6, CHANNELS), random.normal(0.0, 0.3, CHANNELS)
    offset, scale = layer_norm.offset_and_scale(gamma, beta)
    magnitude = layer_norm.NORMALISED_LIMIT + int(np.abs(offset).max())
    factors = exact_factors(scale / 0.03, magnitude)
    arrays = {
        "two": np.array([2], np.int32),
        "one": np.array([1], np.int32),
        "offset": offset,
        "multiplier": factors.multipliers,
        "shift": factors.shifts,
    }
    p = ProgramBuilder(0)
    params = {name: p.parameter(name, array) for name, array in arrays.items()}
    x = var("x", [BATCH, SEQ, CHANNELS], "int32")

    def body() -> list[relax.Var]:
        wide = {"name": "sum", "low": -bound, "high": bound - 1, "dtype": "int32"}
        clamped = p.emit(even(x, params["two"], params["one"], **wide))
        normalised = p.emit(norm(clamped, params["offset"]))
        stored = {"name": "out", "split": factors.split}
        return [p.emit(even(normalised, params["multiplier"], params["shift"], **stored))]

    return p.built([x], body), arrays


def test_values_lie_in_their_intervals() -> None:
    module, arrays = program(2**21)
    report = analyse_ranges(module, arrays, max_seq_len=16)
    random = np.random.default_rng(1)
    x = random.integers(-(2**30) + 1, 2**30, (3, 5, CHANNELS)) >> random.integers(0, 25, (3, 5, 1))
    x[0, 0], x[0, 1] = 7, [2**30 - 1, *[-(2**30)] * (CHANNELS - 1)]
    _, values = evaluate_all(module, {"x": x.astype(np.int32)}, arrays)
    for name, array in values.items():
        low, high = report.values[name]
        assert low <= array.min() and array.max() <= high, name
    assert report.values["sum"] == (-(2**21), 2**21 - 1)
    assert report.values["out"] == (-128, 127)
    assert values["out"].dtype == np.int8


def test_a_sum_that_does_not_fit_names_the_layer() -> None:
    x = var("x", [BATCH, SEQ, CHANNELS], "int32")
    offset = np.full(CHANNELS, 2**63 - 2**31 + 1, np.int64)
    with pytest.raises(RangeError) as caught:
        analyse_ranges(module_of([x], norm, o=offset), {"o": offset})
    assert str(caught.value).splitlines()[1] == "  where: integer.released_layer_norm 'n'"
