"""Encoders of model folders that nothing is compiled for: NumPy evaluates the integers."""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ibert_tvm as ibert
from ibert_tvm import Encoder
from ibert_tvm.compiler.driver import _outputs
from ibert_tvm.encoder.prepared import _length
from ibert_tvm.evaluation.evaluate import evaluate_integers
from ibert_tvm.frontend import CanonicalModel
from ibert_tvm.frontend.source_tokenizer import PROBES
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.canonical import FloatModel
from ibert_tvm.runtime import Library
from ibert_tvm.runtime.library_file import parse_metadata
from ibert_tvm.runtime.metadata import FunctionRecord

_BATCHES = (1, 8)
_STEP = 16
"""Lengths are multiples of it, so that little padding is evaluated."""
_LENGTH = 48
"""Tokens that models are calibrated with."""
Inputs = Mapping[str, np.ndarray]
Evaluate = Callable[[Inputs], Sequence[np.ndarray]]
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
    """An engine and its context: buffers, and a function of them."""

    device = "cpu"
    max_contexts = 1

    def __init__(self, evaluate: Evaluate, names: Sequence[str]) -> None:
        self._evaluate, self._names = evaluate, names
        self._inputs: dict[str, dict[str, np.ndarray]] = {}

    def create_context(self) -> Evaluation:
        return self

    def inputs(self, function: FunctionRecord) -> Mapping[str, np.ndarray]:
        if function.name not in self._inputs:
            shape = (function.batch, function.seq_len)
            arrays = {name: np.zeros(shape, np.int32) for name in self._names}
            self._inputs[function.name] = arrays
        return self._inputs[function.name]

    def run(self, function: FunctionRecord, _num_threads: int) -> Sequence[np.ndarray]:
        return self._evaluate(self.inputs(function))


def evaluated_library(
    model: QuantizedModel, evaluate: Evaluate, folder: Path, **output: Any
) -> Library:
    """A library of a model that computes by a function; `output` changes records of outputs."""
    length = _length(model, None)
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
        "outputs": [record | output for record in _outputs(model)],
        "info": model.info.to_json(),
        "versions": {},
        "source_sha256": model.info.source_sha256,
        "tokenizer": {
            name: base64.b64encode(zlib.compress(content)).decode()
            for name, content in model.tokenizer.items()
        },
    }
    engine = Evaluation(evaluate, model.input_names)
    return Library(parse_metadata(folder, document, 0), 1, engine)


_imported: dict[Path, tuple[CanonicalModel, QuantizedModel]] = {}
"""The model of the last encoder, by its folder."""


def evaluated_encoder(folder: Path, head: str | None = None, pairs: bool = False) -> Encoder:
    """What `ibert_tvm.Encoder` makes of a model folder, by the reference of compiled code."""
    source = ibert.load(folder, head=head, verify=False)
    texts = [*TEXTS, *(probe for probe in PROBES if isinstance(probe, str) and probe.strip())]
    calibration = [*itertools.pairwise(texts)] if pairs else texts
    model = ibert.quantize(source, calibration, seq_len=_LENGTH)
    _imported.clear()
    _imported[folder] = source, model

    def run(inputs: Inputs) -> Sequence[np.ndarray]:
        return list(evaluate_integers(model, inputs).values())

    return Encoder(evaluated_library(model, run, folder))


def float_encoder(folder: Path) -> Encoder:
    """The last encoder's model before it was quantised: a difference is not that of integers."""
    source, model = _imported[folder]
    program = FloatModel(source.module, source.parameters)

    def run(inputs: Inputs) -> Sequence[np.ndarray]:
        return program.run(dict(inputs)).outputs

    return Encoder(evaluated_library(model, run, folder, dtype="float32", scale=1.0))
