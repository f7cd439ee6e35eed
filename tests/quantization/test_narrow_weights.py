"""Matrices in 4 bits: how they are rounded, which of them are chosen, and compiled code of them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.common.errors import UsageError, VerificationError
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.quantization.batches import Batch
from ibert_tvm.quantization.narrow_weights import Mix, narrow_rows, samples, with_narrow_weights
from ibert_tvm.quantization.word_table import with_word_bits, within_bytes
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.operators.linear import NibbleLinear
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.types import TensorType
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from ibert_tvm.relay_passes.spec import nibbles
from tests.arm.whole_models import check_on_microcontroller
from tests.encoder.small_encoders import bert
from tests.integration.whole_models import one_layer, random_inputs
from tests.lowering import lowered
from tests.snapshots import Messages


def given(seed: int = 4) -> dict[str, np.ndarray]:
    inputs = one_layer().program.inputs
    arrays = random_inputs(list(inputs), 3, 20, 90, seed, padding=True)
    return {name: arrays[name].astype(type_.dtype) for name, type_ in inputs.items()}


def batches() -> list[Batch]:
    return [Batch(given(seed)) for seed in range(10, 14)]


@cache
def mix() -> Mix:
    return Mix.of(one_layer(), batches())


def narrow_layers(model: QuantizedModel) -> set[str]:
    return {s.name for s in model.program.steps if isinstance(s.operator, NibbleLinear)}


@pytest.mark.parametrize("channels", [1, 31, 32, 33, 96])
def test_half_bytes_give_what_was_packed(channels: int) -> None:
    random = np.random.default_rng(channels)
    groups = -(-channels // nibbles.GROUP)
    entries = random.integers(-8, 8, (7, groups, nibbles.GROUP)).astype(np.int8)
    scales = random.integers(1, 17, (7, groups))
    packed = nibbles.pack(entries, scales)
    assert tuple(array.shape[1] for array in packed) == nibbles.bytes_of(channels)
    wide = (entries * scales[..., None]).reshape(7, -1)[:, :channels]
    np.testing.assert_array_equal(nibbles.unpack(*packed, channels), wide)


def test_rounding_minds_what_the_columns_are_multiplied_with() -> None:
    random = np.random.default_rng(0)
    weight = np.rint(np.clip(random.normal(0, 40, (30, 70)), -127, 127))
    inputs = random.normal(size=(400, 8)) @ random.normal(size=(8, 70)) + 0.1
    hessian = inputs.T @ inputs / len(inputs) + 0.01 * np.eye(70)
    wide = {}
    for name, moments in (("blind", np.eye(70)), ("seeing", hessian)):
        entries, scales = narrow_rows(weight, moments)
        assert entries.min() == nibbles.LEAST and entries.max() == nibbles.MOST
        wide[name] = nibbles.unpack(*nibbles.pack(entries, scales), 70)
        assert wide[name].min() > -128, "some products take longer with it"
    errors = {name: np.linalg.norm(inputs @ (w - weight).T) for name, w in wide.items()}
    assert errors["seeing"] < 0.5 * errors["blind"]
    nearest = np.linalg.norm(wide["blind"] - weight) / np.linalg.norm(weight)
    assert nearest < 0.12


def test_outputs_stay_close_and_ranges_are_proved() -> None:
    whole, narrow = one_layer(), mix().narrow
    assert narrow_layers(narrow) == set(mix().costs)
    assert narrow.quantization["narrow_weights"] == len(mix().costs) == 6
    assert narrow.info.notes == (*whole.info.notes, "6 matrices of weights have 4 bits")
    sizes = narrow.bytes_by_operator
    assert sum(sizes.values()) == narrow.num_bytes
    assert sizes["nibble_linear"] < 0.75 * whole.bytes_by_operator["linear"]
    (wide,), (found,) = (evaluate(m.program, given(), m.parameters) for m in (whole, narrow))
    error = np.linalg.norm(found - wide) / np.linalg.norm(wide.astype(np.float64))
    assert 0 < error < 0.05
    details = analyse_ranges(narrow.program, narrow.parameters).details
    assert check_unbounded(narrow.program, given(), narrow.parameters, details, np.int64) == []


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("target", ["wasm32", "x86-64-v3", "t4"])
def test_targets_keep_half_bytes(target: str) -> None:
    whole, narrow = (
        lowered(model, target, [(1, 20)]).program.parameters
        for model in (one_layer(), mix().narrow)
    )
    assert any(array.dtype == np.uint8 for array in narrow.values())
    sizes = [sum(array.nbytes for array in arrays.values()) for arrays in (whole, narrow)]
    assert sizes[1] < sizes[0]


@pytest.mark.slow
@pytest.mark.qemu
def test_half_bytes_give_the_same_bits_on_a_microcontroller(tmp_path: Path) -> None:
    inputs = {name: array[:1].astype("int32") for name, array in given().items()}
    check_on_microcontroller(mix().narrow, "cortex-m4", 20, inputs, tmp_path)


@pytest.mark.slow
def test_a_mix_takes_the_cheapest_matrices_first(messages: Messages) -> None:
    whole, few = one_layer(), mix().take(2)
    assert list(mix().costs.values()) == sorted(mix().costs.values())
    assert narrow_layers(few) == set(list(mix().costs)[:2])
    assert few.quantization["narrow_weights"] == 2
    assert mix().take(0) is whole
    assert mix().within_bytes(few.num_bytes).num_bytes == few.num_bytes
    assert mix().within_bytes(mix().narrow.num_bytes - 1) is None
    drops = {mix().take(count).num_bytes: count / 100 for count in range(7)}
    kept = mix().within_drop(0.04, lambda model: drops[model.num_bytes])
    assert len(narrow_layers(kept)) == 4
    table = with_word_bits(whole, 4)
    least = table.num_bytes - whole.num_bytes + mix().narrow.num_bytes
    smallest = within_bytes(
        whole, least, lambda model: replace(mix(), wide=model, narrow=narrowed(model))
    )
    assert smallest.num_bytes == least and len(narrow_layers(smallest)) == 6
    with messages.raises(VerificationError):
        within_bytes(
            whole, least - 1, lambda model: replace(mix(), wide=model, narrow=narrowed(model))
        )
    with messages.raises(UsageError):
        narrowed(mix().narrow)


def narrowed(model: QuantizedModel) -> QuantizedModel:
    return with_narrow_weights(model, batches())


@pytest.mark.slow
def test_texts_are_sampled_with_the_models_own_tokenizer(messages: Messages) -> None:
    model = bert()
    (batch,) = samples(model, ["a b", "c"], 8)
    assert batch.mask.sum() >= 6
    (ids,) = samples(model, [{"input_ids": np.ones((1, 3), np.int64)}])
    assert ids.mask.shape == (1, 3)
    with messages.raises(UsageError):
        samples(replace(model, tokenizer={}), ["a"])
    info = replace(model.info, inputs=("pixel_values",), image_size=(3, 4, 4))
    with messages.raises(UsageError):
        samples(replace(model, info=info), ["a"])


def test_it_is_stored_as_it_is(tmp_path: Path) -> None:
    loaded = QuantizedModel.load(mix().narrow.save(tmp_path / "narrow.ibert"))
    assert loaded.program == mix().narrow.program
    assert loaded.bytes_by_operator == mix().narrow.bytes_by_operator


def test_rows_of_another_size_are_refused(messages: Messages) -> None:
    types = {
        "x": TensorType((2, 5, 40), "int8"),
        "weight": TensorType((9, 32), "uint8"),
        "scales": TensorType((9, 1), "uint8"),
        "bias": TensorType((9,), "int32"),
    }
    assert NibbleLinear("l").result_type(types) == TensorType((2, 5, 9), "int32")
    for channels in (32, 65):
        wrong = {**types, "x": TensorType((2, 5, channels), "int8")}
        with messages.raises(LoweringError):
            NibbleLinear("l").result_type(wrong)


@pytest.mark.slow
def test_compiled_code_gives_the_same_integers(tmp_path: Path) -> None:
    model = mix().take(4)
    ibert.compile(model, target="host", shapes=[(3, 20)]).export(tmp_path / "m.so")
    library = ibert.load_library(tmp_path / "m.so", num_threads=1)
    outputs = evaluate(model.program, given(), model.parameters)
    for found, wanted in zip(
        library.run(**given(), dequantize=False).values(), outputs, strict=True
    ):
        np.testing.assert_array_equal(np.asarray(found.values), wanted)
