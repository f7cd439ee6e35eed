"""Quantised models from file to integers: what is kept, what is estimated, how near it comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import ibert_tvm
from ibert_tvm.common.errors import UsageError
from ibert_tvm.evaluation.metrics import RunningSimilarity
from ibert_tvm.frontend.model import CanonicalModel
from ibert_tvm.frontend.qdq.importing import import_quantised_onnx_model
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.quantization import quantize as quantize_model
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.runtime import load_library
from tests.examples import examples
from tests.frontend.qdq.encoder import HIDDEN, INNER, batches, encoder, quantize, run, weights
from tests.frontend.qdq.variants import VARIANTS
from tests.frontend.qdq.writer import QdqWriter

LAYER = "encoder.layer.0"


def imported(model: onnx.ModelProto, **options: Any) -> CanonicalModel:
    return import_quantised_onnx_model(model, source="model.onnx", **options)


def outputs(model: QuantizedModel, inputs: dict[str, Any]) -> NDArray[np.float64]:
    """What the integer program computes, as real values [batch, seq_len, channels]."""
    (integers,) = evaluate(model.module, model.parameters, inputs)
    return np.asarray(integers) * model.quantization["outputs"][0]["scale"]


def fidelity(model: onnx.ModelProto, reference: onnx.ModelProto, result: QuantizedModel):
    """Cosine with the float model of the integer program and of ONNX Runtime, real tokens only."""
    ours, theirs = RunningSimilarity(), RunningSimilarity()
    for inputs in batches(2):
        kept = inputs["attention_mask"] != 0
        want = run(reference, inputs)[kept]
        ours.add(want, outputs(result, inputs)[kept])
        theirs.add(want, run(model, inputs)[kept])
    return ours.cosine, theirs.cosine


VERIFIED = ("qdq_all_per_channel", "qoperator_all")
"""Variants whose float graph is compared with ONNX Runtime's; for the others that is the same."""


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    "variant", examples(VARIANTS, "qdq_all_per_channel", "qdq_linear_symmetric", "qoperator_linear")
)
def test_no_variant_is_worse_than_in_onnx_runtime(variant, tmp_path):
    reference = encoder(layers=1, gemm=variant == "qoperator_all")
    model = quantize(tmp_path, reference, **VARIANTS[variant])
    canonical = imported(model, verify=variant in VERIFIED)
    if variant in VERIFIED:
        assert canonical.verified_error is not None
        assert canonical.verified_error < 1e-4
    result = quantize_model(canonical, batches())
    ours, theirs = fidelity(model, reference, result)
    assert ours > 0.998
    assert 1 - ours <= 1.1 * (1 - theirs)  # 16 channels leave that much to chance
    # Padding gave the mask a scale beyond use; it plays no part.
    uses = {edge.use for edge in canonical.given.edges}
    assert uses <= {"value", "inside", "inputs"}
    mask = [e for e in canonical.given.edges if e.tensor.startswith("/mask/")]
    assert all(edge.use == "inputs" for edge in mask)


def test_a_model_that_is_quantised_throughout_needs_no_calibration(tmp_path):
    model = quantize(tmp_path, encoder(layers=1), **VARIANTS["qdq_all_per_channel"])
    canonical = imported(model, verify=False)
    result = quantize_model(canonical)
    source = result.quantization["source_scales"]
    assert source["calibrated"] == {"matmul": [], "stream": []}
    assert result.quantization["calibration"] == {}
    # Calibration data changes nothing then.
    again = quantize_model(canonical, batches())
    for name, array in result.parameters.items():
        np.testing.assert_array_equal(again.parameters[name], array)


@pytest.mark.slow
def test_widening_needs_no_calibration_and_comes_nearer(tmp_path):
    model = quantize(tmp_path, encoder(), **VARIANTS["qdq_all_per_channel"])
    canonical = imported(model, verify=False)
    narrow, wide = (quantize_model(canonical, widen=widen) for widen in (False, True))
    assert wide.quantization["source_scales"]["widened"]
    assert wide.quantization["source_scales"]["file"]["grids"] == {}
    cosine, widened = (fidelity(model, encoder(), result)[0] for result in (narrow, wide))
    assert 1 - widened < 0.7 * (1 - cosine)


def test_symmetric_weights_are_the_integers_of_the_file(tmp_path):
    model = quantize(tmp_path, encoder(layers=1), **VARIANTS["qdq_linear_symmetric"])
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    result = quantize_model(imported(model, verify=False), batches())
    checked = 0
    for name, array in stored.items():
        if name.endswith(".weight_quantized"):
            ours = result.parameters[name.removesuffix("_quantized")]
            np.testing.assert_array_equal(ours, array.T)
            checked += 1
    assert checked == 6
    weights_used = result.quantization["source_scales"]["weights"]
    assert weights_used[f"{LAYER}.output.dense"] == {
        "tensor": f"{LAYER}.output.dense.weight",
        "rows": HIDDEN,
        "exact": HIDDEN,
        "why": "",
    }


def test_every_scale_that_is_missing_is_listed(tmp_path, messages):
    model = quantize(tmp_path, encoder(layers=1), **VARIANTS["qdq_linear"])
    with messages.raises(UsageError):
        quantize_model(imported(model, verify=False))


def test_the_record_says_where_every_scale_comes_from(tmp_path):
    model = quantize(tmp_path, encoder(layers=1), **VARIANTS["qdq_linear"])
    source = quantize_model(imported(model, verify=False), batches()).quantization["source_scales"]
    assert source["file"]["matmul"][f"{LAYER}.attention.self"] == (
        "/encoder/layer/0/attention/self/Reshape_3_output_0"
    )
    assert source["file"]["stream"] == {
        "embeddings.LayerNorm": "/embeddings/LayerNorm_output_0",
        f"{LAYER}.attention.output.LayerNorm": (
            "/encoder/layer/0/attention/output/LayerNorm_output_0"
        ),
    }
    assert source["calibrated"]["matmul"] == []
    assert len(source["calibrated"]["stream"]) == 5
    assert source["centred_keys"] == [f"{LAYER}.attention.self.key"]
    inside = [edge for edge in source["ignored"] if edge["value"] == f"{LAYER}.attention.self"]
    assert [edge["tensor"] for edge in inside] == [
        "/encoder/layer/0/attention/self/MatMul_output_0",
        "/encoder/layer/0/attention/self/Softmax_output_0",
    ]


# -- files written by hand --------------------------------------------------------------------


def sparse() -> onnx.ModelProto:
    """Only the operands of the linear layers are rounded, each for its own reader."""
    writer = QdqWriter(encoder(layers=1))
    w = weights(layers=1)
    for name in w:
        if name.startswith(LAYER) and name.endswith(".weight") and "Norm" not in name:
            scale = np.abs(w[name]).max(axis=1) / 127
            integers = np.rint(w[name] / scale[:, None]).astype(np.int64)
            writer.weight(name, integers.T, scale)
    path = "/encoder/layer/0"
    for tensor in (
        "/embeddings/LayerNorm_output_0",
        f"{path}/attention/self/Reshape_3_output_0",
        f"{path}/attention/output/LayerNorm_output_0",
        f"{path}/intermediate/act/Mul_1_output_0",
    ):
        writer.activation(
            tensor, 0.03125, 3, "uint8" if "act" in tensor else "int8", readers=("MatMul",)
        )
    return writer.finish()


def test_a_rounding_for_one_reader_leaves_the_others_wide():
    canonical = imported(sparse(), verify=False)
    readers = canonical.given.readers["embeddings.LayerNorm"]
    assert sorted((r.product, str(r.scale)) for r in readers) == [
        (False, "None"),
        (True, "s8, scale 0.03125, zero point 3"),
        (True, "s8, scale 0.03125, zero point 3"),
        (True, "s8, scale 0.03125, zero point 3"),
    ]
    result = quantize_model(canonical, batches())
    source = result.quantization["source_scales"]
    assert "embeddings.LayerNorm" in source["calibrated"]["stream"]
    assert source["calibrated"]["matmul"] == [
        f"{LAYER}.attention.self.query",
        f"{LAYER}.attention.self.key",
        f"{LAYER}.attention.self.value",
    ]
    assert source["notes"] == []
    ours, theirs = fidelity(sparse(), encoder(layers=1), result)
    assert ours > 0.998
    assert ours > theirs - 1e-3  # which leaves attention in float


def test_layers_that_the_file_leaves_in_float_are_quantised_in_calibration(tmp_path):
    excluded = ["/encoder/layer/0/intermediate/dense/MatMul"]
    model = quantize(
        tmp_path, encoder(layers=1), **VARIANTS["qdq_linear"], nodes_to_exclude=excluded
    )
    source = quantize_model(imported(model, verify=False), batches()).quantization["source_scales"]
    # Its operand is rounded for nobody else: both were estimated together.
    assert source["calibrated"]["matmul"] == [f"{LAYER}.attention.output.LayerNorm"]
    assert source["weights"][f"{LAYER}.intermediate.dense"] == {
        "tensor": "",
        "rows": INNER,
        "exact": 0,
        "why": "floats in the source, rounded in calibration",
    }


@pytest.mark.parametrize("dtype, bits", [("int4", 4), ("uint4", 4)])
def test_four_bit_weights_keep_their_integers(dtype, bits):
    writer = QdqWriter(encoder(layers=1, opset=21))
    name = f"{LAYER}.output.dense"
    matrix = weights(layers=1)[f"{name}.weight"]
    zero = 0 if dtype == "int4" else 8
    scale = np.abs(matrix).max(axis=1) / 7
    integers = np.clip(np.rint(matrix / scale[:, None]), -7, 7).astype(np.int64)
    writer.weight(f"{name}.weight", integers.T + zero, scale, zero, dtype)
    result = quantize_model(imported(writer.finish(), verify=False), batches())
    np.testing.assert_array_equal(result.parameters[f"{name}.weight"], integers)


def test_integers_beyond_int8_are_rounded_again_where_they_occur(tmp_path):
    model = quantize(tmp_path, encoder(layers=1), **VARIANTS["qdq_linear_u8_weights"])
    result = quantize_model(imported(model, verify=False), batches())
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    squeezed = 0
    for name, use in result.quantization["source_scales"]["weights"].items():
        if f"{name}.weight_quantized" not in stored:
            continue
        zero = int(stored[f"{name}.weight_zero_point"])
        steps = stored[f"{name}.weight_quantized"].T.astype(int) - zero
        fits = (steps.min(axis=1) >= -128) & (steps.max(axis=1) <= 127)
        assert use["exact"] == fits.sum()
        np.testing.assert_array_equal(result.parameters[f"{name}.weight"][fits], steps[fits])
        if not fits.all():
            assert use["why"] == "integers beyond int8, counted from their zero point"
            squeezed += 1
    assert squeezed


@pytest.mark.slow
@pytest.mark.parametrize("preset", examples(["accurate", "paper"], "accurate"))
def test_the_compiled_library_computes_the_same_integers(tmp_path, preset):
    """Rounded sums and inputs of GELU reach kernels that calibration alone never makes."""
    model = quantize(tmp_path, encoder(layers=1), **VARIANTS["qdq_all_per_channel"])
    quantized = quantize_model(imported(model, verify=False), preset=preset)
    compiled = ibert_tvm.compile(quantized, target="host", shapes=[(2, 12)])
    library = load_library(compiled.export(tmp_path / "model.so"))
    for inputs in batches(2):
        (have,) = library.run(**inputs, dequantize=False).values()
        (want,) = evaluate(quantized.module, quantized.parameters, inputs)
        np.testing.assert_array_equal(have.values, want)
