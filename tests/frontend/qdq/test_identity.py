"""The same scales give the same integers, whether a file or a table brings them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from ibert_tvm.frontend import load
from ibert_tvm.frontend.model import CanonicalModel
from ibert_tvm.quantization import CalibrationOptions, calibrate, quantize
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.lower import lower_to_integer
from ibert_tvm.relay_passes.quantization_table import (
    ActivationQuant,
    QuantizationTable,
    WeightQuant,
)
from tests.frontend.qdq.encoder import (
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    POSITIONS,
    VOCABULARY,
    batches,
    encoder,
)
from tests.frontend.qdq.writer import QdqWriter

SUM_HIGH = 2**19 - 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A Hugging Face folder of a BERT with random weights."""
    from tests.frontend.architectures import make

    model = make(
        "bert",
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        max_position_embeddings=POSITIONS,
    )
    path = tmp_path_factory.mktemp("hf")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder) -> CanonicalModel:
    return load(folder)


def single(value: Any) -> Any:
    """A scale as a file stores it, as float64."""
    return np.asarray(value, np.float32).astype(np.float64)


def as_stored(table: QuantizationTable, model: CanonicalModel) -> QuantizationTable:
    """The table with scales in single precision and the full range of each integer type."""
    matmul = {}
    for name, q in table.matmul.items():
        scale, divisor = float(single(q.scale)), None
        if q.channel_divisor is not None:
            channels = single(q.channel_scale)
            scale, divisor = float(channels.max()), channels / channels.max()
        low, high = (-128, 127) if q.signed else (0, 255)
        matmul[name] = ActivationQuant(scale, low, high, q.zero_point, divisor)
    sums = sums_of(model)
    stream = {}
    for name, q in table.stream.items():
        # An eighth of the range: sums in a file have 16 bits.
        scale = float(single(q.scale * 8 if q.high > 2**15 else q.scale))
        high = SUM_HIGH if name in sums else 32767
        stream[name] = ActivationQuant(scale, -high - (name not in sums), high)
    weights, embeddings = (
        {name: WeightQuant(w.values, single(w.scale)) for name, w in section.items()}
        for section in (table.weights, table.embeddings)
    )
    return QuantizationTable(table.preset, matmul, stream, weights, embeddings)


def sums_of(model: CanonicalModel) -> list[str]:
    return [item.name for item in model.report.matched if item.op == "canonical.add"]


def as_file(
    table: QuantizationTable, sums: list[str], arrays: Mapping[str, NDArray[np.float32]]
) -> onnx.ModelProto:
    """The same table as a QDQ file: 8 bits before matrix products, 16 on the residual stream."""
    writer = QdqWriter(encoder(arrays, opset=21, token_types=True))
    products = ("MatMul", "Reshape")

    def path(name: str) -> str:
        return "/" + name.replace(".", "/")

    def wide(tensor: str, value: str) -> str:
        return writer.activation(tensor, table.stream[value].scale, dtype="int16")

    def narrow(tensor: str, value: str, readers: tuple[str, ...] = products) -> None:
        q = table.matmul[value]
        dtype = "int8" if q.signed else "uint8"
        per_tensor = q.channel_divisor is None
        scale = q.scale if per_tensor else q.channel_scale
        axis = None if per_tensor else 2
        writer.activation(tensor, scale, q.zero_point, dtype, readers=readers, axis=axis)

    for name, w in table.weights.items():
        writer.weight(f"{name}.weight", w.values.T, w.scale, axis=1)
    for name, w in table.embeddings.items():
        writer.weight(f"{name}.weight", w.values, w.scale, axis=0)
    wide("/embeddings/Add_output_0", sums[0])
    wide("/embeddings/Add_1_output_0", sums[1])
    narrow(wide("/embeddings/LayerNorm_output_0", "embeddings.LayerNorm"), "embeddings.LayerNorm")
    for index in range(LAYERS):
        layer = f"encoder.layer.{index}"
        for part in ("query", "key", "value"):
            name = f"{layer}.attention.self.{part}"
            narrow(f"{path(name)}/Add_output_0", name)
        context = f"{layer}.attention.self"
        narrow(f"{path(context)}/Reshape_3_output_0", context)
        wide(f"{path(layer)}/attention/output/Add_output_0", sums[2 + 2 * index])
        norm = f"{layer}.attention.output.LayerNorm"
        narrow(wide(f"{path(norm)}_output_0", norm), norm)
        inner = f"{layer}.intermediate.dense"
        if inner in table.stream:  # the paper's GELU works on the accumulator
            wide(f"{path(inner)}/Add_output_0", inner)
        gelu = next(n for n in table.matmul if n.startswith(inner))
        narrow(f"{path(layer)}/intermediate/act/Mul_1_output_0", gelu)
        wide(f"{path(layer)}/output/Add_output_0", sums[3 + 2 * index])
        norm = f"{layer}.output.LayerNorm"
        rounded = wide(f"{path(norm)}_output_0", norm)
        if index + 1 < LAYERS:
            narrow(rounded, norm)
    return writer.finish()


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("preset", ["accurate", "paper"])
def test_a_file_and_a_table_with_equal_scales_give_equal_integers(folder, model, tmp_path, preset):
    options = CalibrationOptions(alphas=(0.0,), observer="minmax")
    data = [
        {**batch, "token_type_ids": batch["input_ids"] % 2 * batch["attention_mask"]}
        for batch in batches()
    ]
    table, _ = calibrate(model, data, preset, options)
    table = as_stored(table, model)
    expected = lower_to_integer(model.module, model.parameters, table)

    arrays = {name: np.asarray(array) for name, array in _state(folder).items()}
    onnx.save(as_file(table, sums_of(model), arrays), tmp_path / "model.onnx")
    imported = load(tmp_path / "model.onnx")
    assert imported.verified_error is not None
    assert imported.verified_error < 1e-4
    quantised = quantize(imported, preset=preset)

    source = quantised.quantization["source_scales"]
    assert source["calibrated"] == {"matmul": [], "stream": []}
    assert source["notes"] == []
    assert {use["exact"] == use["rows"] for use in source["weights"].values()} == {True}
    for batch in data[:3]:
        inputs = {name: batch[name] for name in quantised.input_names}
        want = evaluate(expected.module, expected.parameters, batch)
        have = evaluate(quantised.module, quantised.parameters, inputs)
        np.testing.assert_array_equal(np.asarray(have), np.asarray(want))
    # Not only the results: the constants are the same.
    ours = sorted(_digest(array) for array in quantised.parameters.values())
    assert ours == sorted(_digest(array) for array in expected.parameters.values())


def _digest(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return str(array.dtype), array.shape, np.ascontiguousarray(array).tobytes()


def _state(folder: Path) -> dict[str, NDArray[np.float32]]:
    from safetensors.numpy import load_file

    return {
        name.removeprefix("bert."): array
        for name, array in load_file(folder / "model.safetensors").items()
    }
