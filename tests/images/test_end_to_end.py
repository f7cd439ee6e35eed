"""A model of images from its folder to a library: bit-exact, and close to the float model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import ibert_tvm
from ibert_tvm.cli import main
from ibert_tvm.common.errors import InputError, UsageError
from ibert_tvm.evaluation.evaluate import evaluate_integers
from ibert_tvm.model.model_info import ModelInfo
from ibert_tvm.quantization import CalibrationOptions, quantize
from ibert_tvm.runtime.library_file import read_metadata


def call(*arguments: str) -> None:
    assert main(list(arguments)) == 0


@pytest.fixture(scope="module")
def files(tmp_path_factory, make, pixels):
    """Folder, calibration images, artefact and library, all made by the command line."""
    place = tmp_path_factory.mktemp("images")
    model = make("deit", "image_classification")
    model.save_pretrained(place / "folder")
    np.savez(place / "images.npz", pixel_values=pixels(20, seed=1))
    artefact, library = str(place / "deit.ibert"), str(place / "deit.so")
    call(
        *("quantize", str(place / "folder"), "-o", artefact),
        *("--calibration", str(place / "images.npz"), "--json"),
    )
    call("compile", artefact, "-o", library, "--batch", "4", "--json")
    return place


def test_the_library_equals_the_reference_bit_for_bit(files, make, pixels):
    quantized = ibert_tvm.QuantizedModel.load(files / "deit.ibert")
    library = ibert_tvm.load_library(files / "deit.so")
    assert [(f.batch, f.seq_len) for f in library.metadata.functions] == [(4, 11)]
    images = pixels(6, seed=9)  # two calls of 4 rows, the second padded
    result = library.run(pixel_values=images, dequantize=False)["logits"]
    expected = evaluate_integers(quantized, {"pixel_values": images})["logits"]
    np.testing.assert_array_equal(result.values, expected)
    assert np.unique(expected).size > 20
    with torch.no_grad():
        logits = make("deit", "image_classification")(torch.from_numpy(images)).logits.numpy()
    close = result.dequantize()
    cosine = (close * logits).sum() / np.linalg.norm(close) / np.linalg.norm(logits)
    assert cosine > 0.995


@pytest.mark.slow
def test_a_library_without_runtime_takes_images(files, pixels, tmp_path):
    quantized = ibert_tvm.QuantizedModel.load(files / "deit.ibert")
    compiled = ibert_tvm.compile(quantized, shapes=[(2, 11)], runtime="none")
    library = ibert_tvm.load_library(compiled.export(tmp_path / "deit.so"))
    images = pixels(3, seed=9)
    result = library.run(pixel_values=images, dequantize=False)["logits"]
    expected = evaluate_integers(quantized, {"pixel_values": images})["logits"]
    np.testing.assert_array_equal(result.values, expected)
    header = (tmp_path / "deit.h").read_text(encoding="utf-8")
    assert "pixel_values: int8 [batch, 3, 24, 24], scale " in header
    assert "const int8_t *pixel_values," in header
    assert "IBERT_PAD_TOKEN_ID" not in header


def test_pixels_are_quantised_before_the_library_is_called(files, pixels):
    metadata = read_metadata(files / "deit.so")
    (record,) = metadata.inputs
    assert (record.name, record.dtype) == ("pixel_values", "int8")
    assert (record.low, record.high, record.zero_point) == (-127, 127, 0)
    assert 0.01 < record.scale < 0.05  # the calibration's pixels reach about 4
    assert metadata.info.image_size == (3, 24, 24)
    assert ModelInfo.from_json(metadata.info.to_json()) == metadata.info
    library = ibert_tvm.load_library(files / "deit.so")
    images = pixels(1, seed=2)
    integers = np.clip(np.floor(images / record.scale + 0.5), -127, 127).astype(np.int8)
    by_scale, as_they_are = (
        library.run(pixel_values=given, dequantize=False)["logits"].values
        for given in (images, integers)
    )
    np.testing.assert_array_equal(by_scale, as_they_are)


def test_the_command_line_runs_images(files, pixels, capsys):
    np.savez(files / "run.npz", pixel_values=pixels(2, seed=3))
    call("run", str(files / "deit.so"), "--inputs", str(files / "run.npz"), "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["outputs"]["logits"]["shape"] == [2, 5]
    assert len(document["labels"]) == 2
    call("inspect", str(files / "deit.so"), "--json")
    (entry,) = json.loads(capsys.readouterr().out)["inputs"]
    assert (entry["name"], entry["dtype"], entry["zero_point"]) == ("pixel_values", "int8", 0)


@pytest.mark.slow
def test_integers_of_the_module_are_those_of_the_folder(files, make, pixels):
    folder = ibert_tvm.QuantizedModel.load(files / "deit.ibert")
    loaded = ibert_tvm.load(make("deit", "image_classification"), verify=False)
    again = quantize(loaded, [{"pixel_values": pixels(20, seed=1)}])
    images = {"pixel_values": pixels(2, seed=5)}
    np.testing.assert_array_equal(
        evaluate_integers(again, images)["logits"], evaluate_integers(folder, images)["logits"]
    )


@pytest.mark.parametrize(
    "given",
    [
        {"input_ids": [[1, 2]]},
        {},
        {"pixel_values": np.zeros((3, 24, 24), np.float32)},
        {"pixel_values": np.full((1, 3, 24, 24), np.nan)},
        {"pixel_values": np.full((1, 3, 24, 24), -128, np.int8)},
    ],
)
def test_inputs_that_do_not_fit(files, given, messages):
    library = ibert_tvm.load_library(files / "deit.so")
    with messages.raises(InputError):
        library.run(**given)


def test_unsigned_bytes_are_refused_with_the_scale(files):
    library = ibert_tvm.load_library(files / "deit.so")
    with pytest.raises(InputError) as error:
        library.run(pixel_values=np.zeros((1, 3, 24, 24), np.uint8))
    scale = library.metadata.inputs[0].scale
    assert str(error.value) == (
        "pixel_values has the wrong dtype\n  why: it is uint8\n"
        "  what to do: give floats, as the model's image processor does: pixels of 0 to 255 have "
        f"to be normalised first; or int8 integers at the scale {scale:.6g}"
    )


def test_another_length_is_not_compiled(files, messages):
    quantized = ibert_tvm.QuantizedModel.load(files / "deit.ibert")
    with messages.raises(UsageError):
        ibert_tvm.compile(quantized, shapes=[(1, 128)])


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    "calibration",
    [
        ["a text"],
        [{"input_ids": np.ones((1, 4), np.int64)}],
        [{"pixel_values": np.zeros((2, 3, 8, 8), np.float32)}],
        [{"pixel_values": np.full((1, 3, 24, 24), np.inf, np.float32)}],
    ],
)
def test_calibration_that_does_not_fit(vit, calibration, messages):
    with messages.raises(UsageError):
        quantize(vit, calibration, options=CalibrationOptions())


@pytest.fixture(scope="module")
def vit(make):
    return ibert_tvm.load(make("vit", "none"), verify=False)


@pytest.mark.slow
def test_the_published_arithmetic_serves_too(vit, pixels, tmp_path):
    quantized = quantize(vit, [{"pixel_values": pixels(8)}], "paper")
    compiled = ibert_tvm.compile(quantized)  # by default the one length that images become
    library = ibert_tvm.load_library(compiled.export(tmp_path / "vit.so"))
    images = pixels(2, seed=6)
    result = library.run(pixel_values=images, dequantize=False)["last_hidden_state"]
    expected = evaluate_integers(quantized, {"pixel_values": images})["last_hidden_state"]
    assert result.values.shape == (2, 10, 32)
    np.testing.assert_array_equal(result.values, expected)
