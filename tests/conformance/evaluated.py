"""Encoders of model folders that nothing is compiled for: NumPy evaluates the integers."""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ibert_tvm as ibert
from ibert_tvm import Encoder
from ibert_tvm.compiler.driver import _outputs
from ibert_tvm.encoder.prepared import _length
from ibert_tvm.evaluation.evaluate import evaluate_integers
from ibert_tvm.frontend.source_tokenizer import PROBES
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.runtime import Library
from ibert_tvm.runtime.library_file import parse_metadata
from ibert_tvm.runtime.metadata import FunctionRecord

_BATCHES = (1, 8)
_STEP = 16
"""Lengths are multiples of it, so that little padding is evaluated."""
TEXTS = (
    "the cat sat on the mat",
    "The Cat Sat On The Mat",
    "a dog barks at the moon, again and again",
    "Naïve façades of Straße and ÀÉÎÕÜ",
    "numbers: 3.14, 1,000 and 50%",
    "你好，世界 and more words",
    "  spaces   before and behind  ",
    "emoji 😀 in a text",
    "one",
    "a long text that goes on " * 12,
)
"""Ten texts: what models are calibrated with, and what embeddings are compared of."""


class Evaluation:
    """An engine and its context: buffers, and the NumPy reference of a model."""

    device = "cpu"
    max_contexts = 1

    def __init__(self, model: QuantizedModel) -> None:
        self._model = model
        self._inputs: dict[str, dict[str, np.ndarray]] = {}

    def create_context(self) -> Evaluation:
        return self

    def inputs(self, function: FunctionRecord) -> Mapping[str, np.ndarray]:
        if function.name not in self._inputs:
            shape = (function.batch, function.seq_len)
            arrays = {name: np.zeros(shape, np.int32) for name in self._model.input_names}
            self._inputs[function.name] = arrays
        return self._inputs[function.name]

    def run(self, function: FunctionRecord, _num_threads: int) -> Sequence[np.ndarray]:
        return list(evaluate_integers(self._model, self.inputs(function)).values())


def evaluated_library(model: QuantizedModel, length: int, place: Path) -> Library:
    """A library of a model, by the reference that compiled code equals bit for bit."""
    lengths = sorted({*range(_STEP, length, _STEP), length})
    document: dict[str, Any] = {
        "target": {"name": "NumPy"},
        "required_cpu_features": [],
        "functions": [
            {"name": f"main_{rows}_{tokens}", "batch": rows, "seq_len": tokens}
            for rows, tokens in itertools.product(_BATCHES, lengths)
        ],
        "inputs": [{"name": name, "dtype": "int32"} for name in model.input_names],
        "parameters": [],
        "outputs": _outputs(model),
        "info": model.info.to_json(),
        "versions": {},
        "source_sha256": model.info.source_sha256,
        "tokenizer": {
            name: base64.b64encode(zlib.compress(content)).decode()
            for name, content in model.tokenizer.items()
        },
    }
    return Library(parse_metadata(place, document, 0), 1, Evaluation(model))


def evaluated_encoder(folder: Path, head: str | None = None, pairs: bool = False) -> Encoder:
    """What `ibert_tvm.Encoder` makes of a model folder, without compiling it."""
    source = ibert.load(folder, head=head, verify=False)
    texts = [*TEXTS, *(probe for probe in PROBES if isinstance(probe, str) and probe.strip())]
    calibration = [*itertools.pairwise(texts)] if pairs else texts
    model = ibert.quantize(source, calibration, seq_len=48 if pairs else 24)
    return Encoder(evaluated_library(model, _length(model, None), folder))
