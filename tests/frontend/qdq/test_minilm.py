"""MiniLM as ONNX Runtime quantises it: compiled, and held against ONNX Runtime's own result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ibert_tvm
from benchmarks.models import MODELS, calibration_batches, model_folder
from benchmarks.peers.onnx_export import export_onnx
from ibert_tvm.evaluation.agreements import Agreement
from ibert_tvm.evaluation.metrics import mean_pool
from ibert_tvm.model.tokenization import Tokenizer, tokenizer_files
from ibert_tvm.runtime import load_library
from ibert_tvm.texts import data_file

pytestmark = pytest.mark.slow

LENGTH, ROWS, TEXTS = 64, 8, 120
LINEAR = ["MatMul", "Gemm"]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory) -> Path:
    """The folder of the model, if its package is installed."""
    try:
        return model_folder(MODELS["minilm"], tmp_path_factory.mktemp("unused"))
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def exported(minilm, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "float.onnx"
    export_onnx(minilm, path)
    return path


@pytest.fixture(scope="module")
def tokens(minilm):
    texts = [line for line in data_file("heldout.txt").read_text().splitlines() if line.strip()]
    tokenizer = Tokenizer(tokenizer_files(minilm))
    return tokenizer.encode(texts[:TEXTS], max_length=LENGTH)


def embeddings(run: Any, tokens: Any) -> NDArray[np.float64]:
    """Mean-pooled outputs of a function of one batch, of all texts."""
    result = []
    for start in range(0, TEXTS, ROWS):
        ids, mask = (
            np.asarray(array[start : start + ROWS], np.int64)
            for array in (tokens.input_ids, tokens.attention_mask)
        )
        result.append(mean_pool(run({"input_ids": ids, "attention_mask": mask}), mask))
    return np.concatenate(result)


def in_onnx_runtime(path: Path, tokens: Any) -> NDArray[np.float64]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return embeddings(lambda inputs: session.run(None, inputs)[0], tokens)


@pytest.mark.parametrize(
    "operators, per_channel",
    [(LINEAR, True), pytest.param(None, False, marks=pytest.mark.record)],
    ids=["linear", "all"],
)
def test_not_worse_than_onnx_runtime(minilm, exported, tokens, tmp_path, operators, per_channel):
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.items: Iterator[Any] = iter(calibration_batches(minilm)[:32])

        def get_next(self) -> Any:
            return next(self.items, None)

    file = tmp_path / "model.onnx"
    quantize_static(
        exported,
        file,
        Reader(),
        per_channel=per_channel,
        activation_type=QuantType.QUInt8,
        op_types_to_quantize=operators,
    )
    model = ibert_tvm.load(file, tokenizer=minilm)
    assert model.verified_error is not None
    assert model.verified_error < 1e-4
    texts = (
        None if operators is None else data_file("calibration.txt").read_text().splitlines()[:32]
    )
    quantized = ibert_tvm.quantize(model, texts)
    library = tmp_path / "model.so"
    ibert_tvm.compile(quantized, target="host", shapes=[(ROWS, LENGTH)]).export(library)
    compiled = load_library(library)
    (name,) = (output.name for output in quantized.info.outputs)

    reference = in_onnx_runtime(exported, tokens)
    theirs = Agreement.of(reference, in_onnx_runtime(file, tokens))
    ours = Agreement.of(reference, embeddings(lambda i: compiled.run(**i)[name], tokens))
    assert ours.cosine_mean >= theirs.cosine_mean
    assert ours.cosine_min >= theirs.cosine_min
    assert ours.spearman >= theirs.spearman
