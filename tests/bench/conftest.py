"""A small compiled encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two linear layers named like those of an encoder, and a mean; shapes 1x4 and 2x8."""
    from tvm import relax

    import ibert_tvm
    from ibert_tvm.model.artefact import QuantizedModel
    from ibert_tvm.model.model_info import ModelInfo, OutputInfo
    from ibert_tvm.relay_passes import integer
    from ibert_tvm.relay_passes.integer.relax_ops import read_program
    from tests.passes.small import small_program

    def body(p, inputs) -> Sequence[relax.Var]:
        table = p.integers("word.weight", -127, 127, (50, 8), "int8")
        factor = p.integers("word.multiplier", 1, 99, (1,), "int32")
        hidden = p.emit(
            integer.embedding(inputs["input_ids"], table, factor, name="embeddings.word", shift=3)
        )
        for layer in range(2):
            operand = p.requantise(f"operand.{layer}", hidden, 0.05)
            hidden = p.linear(f"encoder.layer.{layer}.dense", operand, 8)
        mean = integer.mean_pool(hidden, inputs["attention_mask"], name="mean", fraction_bits=4)
        return [p.emit(mean)]

    program = small_program(body)
    info = ModelInfo(
        architecture="bert",
        head="sentence_embedding",
        inputs=("input_ids", "attention_mask"),
        outputs=(OutputInfo("sentence_embedding", "mean", "embedding"),),
        hidden_size=8,
        num_layers=2,
        vocab_size=50,
        max_sequence_length=16,
        source_sha256="ab" * 32,
    )
    outputs = [{"name": "sentence_embedding", "scale": 0.25}]
    quantization = {"preset": "accurate", "outputs": outputs}
    model = QuantizedModel(read_program(program.module), program.parameters, info, quantization)
    path = tmp_path_factory.mktemp("bench") / "small.so"
    ibert_tvm.compile(model, target="host", shapes=[(1, 4), (2, 8)]).export(path)
    return path
