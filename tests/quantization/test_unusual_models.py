"""Models with unusual weights are taken, and their integers come as near as 8 bits can."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ibert_tvm.common.types import Array
from ibert_tvm.frontend import CanonicalModel
from ibert_tvm.quantization.options import CalibrationOptions
from ibert_tvm.quantization.post_training import assemble, calibrate, quantize
from ibert_tvm.relay_passes.errors import RangeError
from tests.canonical.reference import run
from tests.examples import examples
from tests.quantization.models import ARCHITECTURES, outputs, random_batches, random_model

Change = Callable[[Array], Array]
SCORES = ("query", "key", "q_lin", "k_lin")
INNER = ("intermediate", "lin1")
HEADS = ("classifier", "pooler", "qa_outputs")


def of(*parts: str, ends: str = "", dimensions: int = 0) -> Callable[[str, Array], bool]:
    """Which weights: by parts of their names, by the end of it, by their dimensions."""

    def chosen(name: str, array: Array) -> bool:
        named = not parts or any(part in name for part in parts)
        return named and name.endswith(ends) and dimensions in (0, array.ndim)

    return chosen


def times(factor: float) -> Change:
    return lambda a: a * factor


def every_third_row(a: Array) -> Array:
    a = a.copy()
    a[::3] = 0
    return a


def spread(shape: Callable[[Array], tuple[int, ...]], by: float) -> Change:
    """Multiply by random numbers of many magnitudes."""
    return lambda a: a * np.exp(by * np.random.default_rng(3).normal(size=shape(a)))


_STEPS = 42
MATRICES = of(dimensions=2)
GAMMAS = of("Norm", "layer_norm", ends="weight")
UNUSUAL: dict[str, list[tuple[Callable[[str, Array], bool], Change]]] = {
    "as they are": [],
    "constant weights": [(of(), lambda a: np.full_like(a, 0.5))],
    "constant matrices": [(MATRICES, lambda a: np.full_like(a, 0.1))],
    "no weights": [(of(), times(0.0))],
    "no matrices": [(MATRICES, times(0.0))],
    "huge": [(of(), times(1e4))],
    "huge matrices": [(MATRICES, times(1e4))],
    "tiny": [(of(), times(1e-8))],
    "tiny matrices": [(MATRICES, times(1e-8))],
    "tiny queries and keys": [(of(*SCORES), times(1e-8))],
    "tiny queries": [(of("query", "q_lin"), times(1e-8))],
    "queries of 1e-4": [(of("query", "q_lin"), times(1e-4))],
    "no queries and keys": [(of(*SCORES), times(0.0))],
    "huge queries and keys": [(of(*SCORES), times(1e4))],
    "large queries and keys": [(of(*SCORES), times(100.0))],
    "identical rows": [(MATRICES, lambda a: np.broadcast_to(a[:1], a.shape))],
    "rows of zeros": [(MATRICES, every_third_row)],
    "columns of zeros": [(MATRICES, lambda a: every_third_row(a.T).T)],
    "huge biases": [(of(ends="bias"), lambda a: a + spread(np.shape, 1.0)(np.full_like(a, 1e4)))],
    "biases above products": [
        (MATRICES, times(1e-8)),
        (of(ends="bias"), lambda a: a + spread(np.shape, 0.5)(np.ones_like(a))),
    ],
    "gammas of 0": [(GAMMAS, times(0.0))],
    "tiny gammas": [(GAMMAS, times(1e-8))],
    "huge gammas": [(GAMMAS, times(1e4))],
    "wide rows": [(MATRICES, spread(lambda a: (len(a), 1), 1.0))],
    "wide columns": [(MATRICES, spread(lambda a: (1, a.shape[1]), 2.0))],
    "wide matrices": [(MATRICES, spread(np.shape, 2.0))],
    "tiny inner layers": [(of(*INNER), times(1e-8))],
    "huge inner layers": [(of(*INNER), times(1e4))],
    "tiny heads": [(of(*HEADS), times(1e-8))],
    "huge heads": [(of(*HEADS), times(1e5))],
}
IN_DEFAULT_SET = [
    ("bert", "tiny queries and keys", "accurate"),
    ("roberta", "huge heads", "paper"),
    ("roberta", "biases above products", "accurate"),
]
PRESETS = ("accurate", "paper")
ALL = list(itertools.product(ARCHITECTURES, UNUSUAL, PRESETS))
# Every kind with each preset, the architectures in turn.
SLOW = [
    (ARCHITECTURES[(number + place) % len(ARCHITECTURES)], kind, preset)
    for number, kind in enumerate(UNUSUAL)
    for place, preset in enumerate(PRESETS)
]


def unusual(architecture: str, kind: str) -> CanonicalModel:
    model, parameters = random_model(architecture), {}
    for name, array in model.parameters.items():
        for chosen, change in UNUSUAL[kind]:
            if chosen(name, array):
                array = change(array).astype(np.float32)
        parameters[name] = array
    if "huge" in kind or "large" in kind:
        # One key wins, so which one does must not depend on 8 bits: a token attends to itself.
        for name in parameters:
            parameters[name] = parameters[name.replace("key", "query").replace("k_lin", "q_lin")]
    return replace(model, parameters=parameters)


def rounded(model: CanonicalModel, seed: int) -> CanonicalModel:
    """The model with noise on its matrices, of steps of 6 bits: activations are rounded too."""
    random, parameters = np.random.default_rng(seed), {}
    for name, array in model.parameters.items():
        step = np.abs(array).max(axis=-1, keepdims=True) / _STEPS if array.ndim == 2 else 0.0
        noise = random.uniform(-1, 1, array.shape) * step
        parameters[name] = (array + noise).astype(np.float32)
    return replace(model, parameters=parameters)


def size(array: Array, kept: Array | slice) -> float:
    return float(np.sqrt(np.square(array[kept]).mean()))


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("architecture", "kind", "preset"),
    examples(ALL, *IN_DEFAULT_SET, unpack=True, otherwise="record", slow=SLOW),
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unusual_weights_are_taken(architecture: str, kind: str, preset: str) -> None:
    model = unusual(architecture, kind)
    quantized = quantize(model, random_batches(model, 6), preset)
    inputs = random_batches(model, 1, seed=3)[0]
    seen = inputs["attention_mask"] != 0
    noisy = [
        [values[output.value] for output in model.info.outputs]
        for values in (
            run(model.module, {**rounded(model, seed).parameters, **inputs}) for seed in range(3)
        )
    ]
    for index, (expected, actual) in enumerate(outputs(model, quantized, inputs)):
        kept = seen if expected.ndim == 3 else slice(None)
        error = size(actual - expected, kept)
        change = max(size(other[index] - expected, kept) for other in noisy)
        assert error <= 3 * change + 0.02 * size(expected, kept) + 1e-5


def test_given_scales_that_are_not_served_are_refused() -> None:
    model = unusual("bert", "huge queries and keys")
    batches = random_batches(model, 2)
    table, summary = calibrate(model, batches, "accurate", CalibrationOptions())
    notes = assemble(model, table, summary).info.notes
    assert [note[:11] for note in notes] == ["2 functions"]
    with pytest.raises(RangeError, match="too coarse for i-exp"):
        assemble(model, replace(table, calibrated=False), summary)


def test_a_note_says_that_queries_are_coarser() -> None:
    model = unusual("bert", "tiny queries and keys")
    notes = quantize(model, random_batches(model, 2)).info.notes
    assert [note[:24] for note in notes] == ["scores of 2 attentions a"]
