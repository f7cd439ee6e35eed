"""A quantised model with one matrix product: tuning it takes one kernel's time, and no torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.model.model_info import ModelInfo
from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from tests.passes.models import ProgramBuilder

VOCABULARY, CHANNELS, OUTPUTS = 20, 32, 48


def small_model() -> QuantizedModel:
    """An embedding and a linear layer; its output per token is 0 at padding."""
    p = ProgramBuilder(seed=3)
    shape = [tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")]
    names = ("input_ids", "attention_mask")
    ids, mask = inputs = [relax.Var(name, relax.TensorType(shape, "int32")) for name in names]
    with p.builder.function("main", inputs, attrs={"num_input": 2}):
        with p.builder.dataflow():
            table = p.integers("table", -127, 127, (VOCABULARY, CHANNELS), "int8")
            multiplier = p.parameter("table.multiplier", np.array([1 << 20], "int32"))
            x = p.emit(integer.embedding(ids, table, multiplier, name="emb", shift=20))
            x = p.linear("fc", p.requantise("in", x, 0.9), OUTPUTS)
            x = p.requantise("out", x, 0.01, channels=OUTPUTS)
            output = p.builder.emit_output(integer.mask_tokens(x, mask, name="hidden"))
        p.builder.emit_func_output(output)
    built = p.builder.get()["main"]
    function = relax.Function(
        [*inputs, *p.vars], built.body, built.ret_ty, built.is_pure, built.attrs
    )
    info = {
        "architecture": "bert",
        "head": "none",
        "inputs": list(names),
        "outputs": [{"name": "hidden", "value": "hidden", "kind": "hidden_state"}],
        "hidden_size": CHANNELS,
        "num_layers": 1,
        "vocab_size": VOCABULARY,
        "type_vocab_size": 1,
        "max_sequence_length": 64,
        "pad_token_id": 0,
        "source": "a test",
        "source_sha256": "00" * 32,
    }
    return QuantizedModel(
        program=read_program(relax.transform.Normalize()(tvm.IRModule({"main": function}))),
        parameters=p.parameters,
        info=ModelInfo.from_json(info),
        quantization={
            "preset": "accurate",
            "outputs": [{"name": "hidden", "scale": 0.5}],
            "calibration": {"texts": 3},
        },
        tokenizer={},
    )


def inputs_of(length: int, seed: int) -> dict[str, NDArray[np.int32]]:
    """One row of random ids, its last two tokens padding."""
    ids = np.random.default_rng(seed).integers(1, VOCABULARY, (1, length)).astype("int32")
    mask = np.ones_like(ids)
    mask[:, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def expected(model: QuantizedModel, arrays: Mapping[str, NDArray[np.int32]]) -> NDArray[np.int64]:
    """What the integer specification says."""
    (result,) = evaluate(model.module, arrays, model.parameters)
    return result
