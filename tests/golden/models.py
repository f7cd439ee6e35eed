"""The models that have golden integers, from their source to the integer program.

Calibration runs a float model, whose last bits depend on the processor (vector lengths, fused
multiply-add, BLAS), so what it chooses is read from `tables.json` instead: scales, ranges and
smoothing of every activation. Integer weights follow from these by rounding to the nearest, which
every processor does alike. Everything behind the table is the product's own code.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ibert_tvm as ibert
from ibert_tvm.frontend import CanonicalModel
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.quantization import CalibrationOptions, calibrate, options_of
from ibert_tvm.quantization.narrow_weights import with_narrow_weights
from ibert_tvm.quantization.table import TableBuilder
from ibert_tvm.quantization.weights import nearest, row_scales
from ibert_tvm.quantization.word_table import with_word_bits
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.lower import lower_to_integer, requirements
from ibert_tvm.relay_passes.quantization_table import (
    ActivationQuant,
    QuantizationTable,
    WeightQuant,
)
from ibert_tvm.texts import data_file
from tests.golden import sources

TABLES = Path(__file__).with_name("tables.json")
Arrays = dict[str, NDArray[Any]]

TRAINED, GIVEN = "trained", "given"
_DEFAULT = CalibrationOptions()


@dataclass(frozen=True)
class Golden:
    """One model with golden integers.

    Attributes
    ----------
    source
        A name of `tests.golden.sources.load`.
    preset
        Numerics.
    scales
        "" where activations were calibrated, `TRAINED` where a checkpoint and `GIVEN` where a
        quantised file brings all of them.
    options
        Of the calibration that made its entry of the table.
    whole
        A model of a real size.
    fast
        Part of the default tests, with a digest for every name.
    word_bits, weight_bits
        Of its table of words, and of all matrices.
    scales_of
        Another model whose entry of the table it shares; "" for its own.
    """

    source: str
    preset: str = "accurate"
    scales: str = ""
    options: CalibrationOptions = _DEFAULT
    whole: bool = False
    fast: bool = False
    word_bits: int = 8
    weight_bits: int = 8
    scales_of: str = ""


# How well these are quantised does not matter.
_CLOSE = options_of("default")
_PLAIN = CalibrationOptions(observer="minmax", alphas=(0.0,), compensate=False)
MODELS = {
    "bert": Golden("bert", fast=True),
    "bert-paper": Golden("bert", "paper", fast=True),
    "bert-default": Golden("bert", options=_CLOSE, fast=True),
    "bert-best": Golden("bert", options=options_of("best"), fast=True),
    "bert-words-4": Golden(
        "bert", options=_CLOSE, fast=True, word_bits=4, scales_of="bert-default"
    ),
    "bert-4": Golden(
        "bert", options=_CLOSE, fast=True, word_bits=4, weight_bits=4, scales_of="bert-default"
    ),
    "bert-mean": Golden("bert-mean"),
    "bert-mean-paper": Golden("bert-mean", "paper"),
    "bert-classifier": Golden("bert-classifier"),
    "odd": Golden("odd"),
    "odd-paper": Golden("odd", "paper"),
    "roberta": Golden("roberta"),
    "roberta-paper": Golden("roberta", "paper"),
    "distilbert": Golden("distilbert"),
    "distilbert-paper": Golden("distilbert", "paper"),
    "electra": Golden("electra"),
    "deit": Golden("deit", fast=True),
    "deit-paper": Golden("deit", "paper"),
    "ibert": Golden("ibert", "released", TRAINED, fast=True),
    "ibert-mean": Golden("ibert-mean", "released", TRAINED),
    "ibert-accurate": Golden("ibert"),
    "onnx": Golden("onnx"),
    "qdq": Golden("qdq", scales=GIVEN, fast=True),
    "qdq-widened": Golden("qdq", scales=GIVEN, options=CalibrationOptions(widen=True)),
    "qdq-paper": Golden("qdq", "paper", scales=GIVEN),
    "qoperator": Golden("qoperator"),
    "minilm": Golden("minilm", whole=True),
    "minilm-paper": Golden("minilm", "paper", whole=True),
    "minilm-default": Golden("minilm", options=_CLOSE, whole=True),
    "bert-base": Golden("bert-base", options=_PLAIN, whole=True),
}
RANGES = "ranges of checkpoints"
"""Key of `tables.json`."""


@functools.cache
def tables() -> dict[str, Any]:
    """What `tests.golden.update --tables` wrote."""
    document: dict[str, Any] = json.loads(TABLES.read_text(encoding="utf-8"))
    return document


@functools.lru_cache(maxsize=2)
def canonical(source: str) -> CanonicalModel:
    """The float model."""
    return sources.load(source, tables()[RANGES].get(source))


# -- tables ------------------------------------------------------------------------------------


_SECTIONS = ("matmul", "stream", "grids")
_BY_CHANNEL = ("splits", "channel_zero_point")


def stored_activations(table: QuantizationTable, smoothing: bool = True) -> dict[str, Any]:
    """The activations of a calibrated table, in few digits: what `tables.json` has of a model."""
    result: dict[str, Any] = {}
    for section in _SECTIONS:
        result[section] = {}
        for name, quant in getattr(table, section).items():
            kept = [float(f"{quant.scale:.6g}"), quant.low, quant.high, quant.zero_point]
            if smoothing and quant.channel_divisor is not None:
                kept.append([float(f"{number:.3g}") for number in quant.channel_divisor])
            entry = quant.to_json()
            whole = {key: entry[key] for key in _BY_CHANNEL if key in entry}
            if whole:
                kept += [*([[]] if len(kept) == 4 else []), whole]
            result[section][name] = kept
    if table.offsets:
        result["offsets"] = {
            name: [float(f"{number:.3g}") for number in taken]
            for name, taken in table.offsets.items()
        }
    return result


def _activation(scale: float, low: int, high: int, zero_point: int, *more: Any) -> ActivationQuant:
    """What `stored_activations` kept of a value."""
    divisor, whole = [*more, *([], {})[len(more) :]]
    by_channel = {"channel_divisor": divisor} if divisor else {}
    form = {"scale": scale, "low": low, "high": high, "zero_point": zero_point}
    return ActivationQuant.from_json({**form, **by_channel, **whole})


def _rounded_weights(
    model: CanonicalModel, preset: str, matmul: Mapping[str, Any], options: CalibrationOptions
) -> tuple[dict[str, WeightQuant], dict[str, WeightQuant]]:
    """Nearest integers of all matrices, and of all embeddings."""
    needed = requirements(model.module, preset)
    embeddings = TableBuilder(needed, model.parameters, preset, options).embeddings()
    weights = {}
    for name, value in needed.items():
        for reader in value.layers if value.matmul else ():
            matrix = model.parameters[needed[reader].weight]
            divisor = matmul[name].channel_divisor
            if divisor is not None:
                matrix = matrix * divisor.astype(np.float32)
            scale = row_scales(matrix)
            rounded = nearest(matrix, scale)
            if matmul[name].splits is not None:
                rounded = rounded[:, matmul[name].columns]
            weights[reader] = WeightQuant(rounded, scale)
    return weights, embeddings


def table(name: str) -> QuantizationTable:
    """The quantisation table of a model, the same on every machine."""
    golden = MODELS[name]
    model = canonical(golden.source)
    if golden.scales:
        return calibrate(model, None, golden.preset, golden.options)[0]
    stored = tables()[golden.scales_of or name]
    sections = {
        section: {key: _activation(*kept) for key, kept in stored[section].items()}
        for section in _SECTIONS
    }
    offsets = {key: np.array(taken) for key, taken in stored.get("offsets", {}).items()}
    result = QuantizationTable(golden.preset, **sections, offsets=offsets)
    if model.given is None:
        weights, embeddings = _rounded_weights(model, golden.preset, result.matmul, golden.options)
    else:  # its integers are those of the file
        own, _ = calibrate(model, calibration(name), golden.preset, golden.options)
        weights, embeddings = dict(own.weights), dict(own.embeddings)
    centred = golden.options.search.centre
    return replace(result, weights=weights, embeddings=embeddings, centred=centred)


@functools.lru_cache(maxsize=4)
def quantized(name: str) -> QuantizedModel:
    """The integer program of a model."""
    chosen = table(name)
    model = canonical(MODELS[name].source)
    lowered = lower_to_integer(model.module, model.parameters, chosen)
    quantization = {"preset": chosen.preset, **lowered.scales, "calibration": {}}
    whole = QuantizedModel(
        read_program(lowered.module), lowered.parameters, model.info, quantization
    )
    if MODELS[name].weight_bits == 4:  # to the nearest, which every processor does alike
        whole = with_narrow_weights(whole, [])
    return with_word_bits(whole, MODELS[name].word_bits)


# -- inputs ------------------------------------------------------------------------------------

BATCH, LENGTH = 3, 17
CALIBRATION_LENGTH = 24


def _tokens(
    names: Iterable[str], vocabulary: int, seed: int, batch: int, length: int, padding: bool
) -> Arrays:
    random = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int64)
    if padding:
        mask[1] = 0
        mask[-1, length // 2 :] = 0
    values = {
        "input_ids": random.integers(3, vocabulary, (batch, length)),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, (batch, length)),
    }
    return {name: values[name] for name in names}


def inputs(name: str) -> Arrays:
    """A batch: three images, or a whole text, one that is all padding, and one that is half."""
    info = canonical(MODELS[name].source).info
    if info.image_size is not None:
        random = np.random.default_rng(5)
        return {"pixel_values": random.integers(-127, 128, (BATCH, *info.image_size), np.int8)}
    return _tokens(info.inputs, info.vocab_size, 5, BATCH, LENGTH, padding=True)


def shape(name: str) -> tuple[int, int]:
    """What to compile for `inputs`."""
    info = canonical(MODELS[name].source).info
    return BATCH, info.max_sequence_length if info.image_size is not None else LENGTH


def calibration(name: str) -> list[str] | list[Arrays]:
    """What a model is calibrated on."""
    golden = MODELS[name]
    info = canonical(golden.source).info
    if info.image_size is not None:
        random = np.random.default_rng(6)
        images = random.integers(-256, 257, (20, *info.image_size)).astype(np.float32) / 64
        return [{"pixel_values": images}]
    if golden.whole and golden.source == "minilm":
        return data_file("calibration.txt").read_text(encoding="utf-8").splitlines()[:16]
    length = min(CALIBRATION_LENGTH, info.max_sequence_length or CALIBRATION_LENGTH)
    names, vocabulary = info.inputs, info.vocab_size
    return [_tokens(names, vocabulary, seed, 2, length, padding=False) for seed in range(10, 14)]


def evaluated(name: str) -> tuple[Arrays, Arrays]:
    """Outputs and every captured value of the reference on `inputs`."""
    model = quantized(name)
    outputs, values = evaluate_all(model.module, inputs(name), model.parameters)
    names = [output.name for output in model.info.outputs]
    return dict(zip(names, outputs, strict=True)), values


def library(name: str, path: Path, build: Callable[..., Any] | None = None) -> Arrays:
    """Outputs on `inputs` of the library for this machine, or of what `build` makes."""
    model, shapes = quantized(name), [shape(name)]
    if build is None:
        ibert.compile(model, target="host", shapes=shapes).export(path)
        loaded = ibert.load_library(path, num_threads=1)
    else:
        loaded = build(model, shapes, path)
    results = loaded.run(**inputs(name), dequantize=False)
    return {key: np.asarray(output.values) for key, output in results.items()}
