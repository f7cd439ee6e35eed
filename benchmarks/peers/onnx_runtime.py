"""ONNX Runtime: FP32 fused, INT8 dynamic and INT8 static."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.models import Cell, ModelSpec, calibration_batches

from .base import Peer, Run
from .onnx_export import export_onnx, fuse_onnx

__all__ = [
    "OnnxRuntimeFloat",
    "OnnxRuntimeInt8AsExported",
    "OnnxRuntimeInt8Dynamic",
    "OnnxRuntimeInt8Static",
]


class _OnnxRuntime(Peer):
    packages = (
        ("onnxruntime", "onnxruntime"),
        ("onnx", "onnx"),
        ("torch", "torch"),
        ("transformers", "transformers"),
    )
    # Graph optimisers of the session to leave out.
    disabled: tuple[str, ...] = ()

    def load(self, folder: Path, spec: ModelSpec, cell: Cell | None, threads: int) -> Run:
        """Make a session whose symbolic dimensions are fixed to the cell's, if there is one."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        if cell is not None:
            options.add_free_dimension_override_by_name("batch", cell.batch)
            options.add_free_dimension_override_by_name("sequence", cell.seq_len)
        session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=list(self.disabled) or None,
        )

        def run(inputs: dict[str, np.ndarray]) -> np.ndarray:
            return session.run(None, inputs)[0]

        return run


class OnnxRuntimeFloat(_OnnxRuntime):
    """The graph fused by ``onnxruntime.transformers``."""

    name = "onnxruntime-fp32"
    title = "ONNX Runtime FP32, fused by its transformers optimiser"
    precision = "fp32"

    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Export and fuse."""
        export_onnx(source, folder / "unfused.onnx")
        counts = fuse_onnx(folder / "unfused.onnx", folder / "model.onnx", spec)
        (folder / "fused.json").write_text(json.dumps(counts))
        (folder / "unfused.onnx").unlink()


class OnnxRuntimeInt8Dynamic(_OnnxRuntime):
    """Dynamic quantisation of the fused graph; activations get their scale at run time."""

    name = "onnxruntime-int8-dynamic"
    title = "ONNX Runtime INT8, dynamic, per channel, from the fused graph"
    precision = "int8"
    fused = True

    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Export, fuse, quantise."""
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        exported, graph = folder / "unfused.onnx", folder / "float.onnx"
        export_onnx(source, exported)
        if self.fused:
            fuse_onnx(exported, graph, spec)
            exported.unlink()
        else:
            exported.rename(graph)
        quantize_dynamic(
            graph,
            folder / "model.onnx",
            per_channel=True,
            weight_type=QuantType.QInt8,
            # Fused operators have no shape inference: this is the type of their outputs.
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
        graph.unlink()


class OnnxRuntimeInt8AsExported(OnnxRuntimeInt8Dynamic):
    """The same of the graph as it was exported: for quality, of models that cannot be fused."""

    name = "onnxruntime-int8-as-exported"
    title = "ONNX Runtime INT8, dynamic, per channel, from the graph as it was exported"
    fused = False


class OnnxRuntimeInt8Static(_OnnxRuntime):
    """Static QDQ quantisation of the linear layers.

    Attention's products and the mask stay in float: quantising the mask's bias, as the default
    does, spoils the model. MatMulAddFusion would hide the linear layers from the QDQ fusions.
    """

    name = "onnxruntime-int8-static"
    title = "ONNX Runtime INT8, static QDQ, linear layers only, per channel"
    precision = "int8"
    disabled = ("MatMulAddFusion",)

    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Export, calibrate, insert QuantizeLinear and DequantizeLinear round linear layers."""
        import onnx
        from onnxruntime.quantization import (
            CalibrationDataReader,
            QuantFormat,
            QuantType,
            quantize_static,
        )

        class Reader(CalibrationDataReader):
            def __init__(self) -> None:
                self.batches = iter(calibration_batches(source)[:64])

            def get_next(self) -> dict[str, np.ndarray] | None:
                return next(self.batches, None)

        export_onnx(source, folder / "float.onnx")
        graph = onnx.load(str(folder / "float.onnx"), load_external_data=False).graph
        weights = {tensor.name for tensor in graph.initializer}
        linear = [
            node.name
            for node in graph.node
            if node.op_type == "MatMul" and node.input[1] in weights
        ]
        quantize_static(
            folder / "float.onnx",
            folder / "model.onnx",
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=linear,
            op_types_to_quantize=["MatMul"],
        )
        (folder / "float.onnx").unlink()
