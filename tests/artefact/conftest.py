"""A tiny quantised model: an embedding, requantised, and its masked mean."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.model.artefact import QuantizedModel
from tests.runtime.conftest import CHANNELS, VOCABULARY, TinyModel


def make_quantized() -> QuantizedModel:
    """Build it."""
    from tvm import relax, tirx

    from ibert_tvm.relay_passes import integer
    from ibert_tvm.relay_passes.integer.relax_ops import read_program

    batch, seq_len = tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")
    shape = [batch, seq_len]
    ids = relax.Var("input_ids", relax.TensorType(shape, "int32"))
    mask = relax.Var("attention_mask", relax.TensorType(shape, "int32"))
    table = relax.Var("emb.weight", relax.TensorType([len(VOCABULARY), CHANNELS], "int8"))
    multiplier = relax.Var("emb.multiplier", relax.TensorType([1], "int32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [ids, mask, table, multiplier], attrs={"num_input": 2}):
        with builder.dataflow():
            x = builder.emit(integer.embedding(ids, table, multiplier, name="emb", shift=3))
            pooled = builder.emit(integer.mean_pool(x, mask, name="pool", fraction_bits=4))
            output = builder.emit_output(pooled)
        builder.emit_func_output(output)
    tiny = TinyModel()
    info = tiny.info.to_json()
    info["inputs"] = ["input_ids", "attention_mask"]
    info["outputs"] = [{"name": "sentence_embedding", "value": "pool", "kind": "embedding"}]
    from ibert_tvm.model.model_info import ModelInfo
    from ibert_tvm.model.tokenization import Tokenizer
    from ibert_tvm.model.tokenizer_behaviour import behaviour

    tokenizer = {"vocab.txt": "\n".join(VOCABULARY).encode()}
    info["tokenizer_behaviour"] = behaviour(Tokenizer(tokenizer))
    return QuantizedModel(
        program=read_program(builder.get()),
        parameters={"emb.weight": tiny.table, "emb.multiplier": np.array([9], np.int32)},
        info=ModelInfo.from_json(info),
        quantization={
            "preset": "accurate",
            "outputs": [{"name": "sentence_embedding", "scale": 0.5 / 16}],
            "calibration": {"texts": 3},
        },
        tokenizer=tokenizer,
    )


@pytest.fixture(scope="session")
def quantized() -> QuantizedModel:
    return make_quantized()
